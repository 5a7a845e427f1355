"""The capture file: recorder.py decides what is in it, writer.py knows HDF5."""
