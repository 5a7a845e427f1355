// The compiler's intrinsics, without the false warnings from inside them: GCC 12 reports the
// undefined vectors inside unmasked AVX-512 intrinsics as uninitialised (GCC bug 105593).
#pragma once

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
