// toml++, which Debian offers as a shared library only: the definitions of what its headers
// declare.
#define TOML_IMPLEMENTATION
#include <toml++/toml.h>
