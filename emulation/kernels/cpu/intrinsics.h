// The compiler's intrinsics, without the warnings that are about themselves: GCC 12 takes the
// undefined vectors inside unmasked AVX-512 intrinsics for uninitialised ones (GCC bug 105593).
#pragma once

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
