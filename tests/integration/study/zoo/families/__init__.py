"""One file per family. Each function builds one network; the decorator names its family and package."""
