// Marks functions that also run on a GPU: plain C++ to the host's compiler, both to nvcc.
#pragma once

#ifdef __CUDACC__
#define LOCKSTEP_HOST_DEVICE __host__ __device__
#else
#define LOCKSTEP_HOST_DEVICE
#endif
