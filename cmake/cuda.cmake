# The code that runs on NVIDIA GPUs (*.cu in emulation/verify/nvidia and emulation/kernels/cuda), compiled
# on request, because few builds need it, and run if there is a GPU. The CUDA runtime is linked
# statically and looks for the driver on first use, so the program starts on machines without either.
set(LOCKSTEP_CUDA OFF CACHE STRING "Code for NVIDIA GPUs: OFF, ON, AUTO (if nvcc is found)")
set_property(CACHE LOCKSTEP_CUDA PROPERTY STRINGS AUTO ON OFF)

if(LOCKSTEP_CUDA STREQUAL "AUTO" AND LOCKSTEP_SANITIZE)
  message(STATUS "CUDA: off in sanitizer builds")
elseif(LOCKSTEP_CUDA)
  include(CheckLanguage)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES OFF)   # listed below, chip by chip
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    if(CMAKE_CXX_COMPILER_LAUNCHER AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
    endif()
    enable_language(CUDA)
    # CMake 3.25 does not know that nvcc supports C++20.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
    set(CMAKE_CUDA_STANDARD 20)
  elseif(NOT LOCKSTEP_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "LOCKSTEP_CUDA=${LOCKSTEP_CUDA}: no working nvcc was found")
  else()
    message(STATUS "CUDA: no nvcc, GPU units report 'built without CUDA'")
  endif()
endif()

# Machine code for Turing, Ampere, Ada, Hopper (the `a` enables wgmma), Blackwell, RTX Blackwell.
set(LOCKSTEP_CUDA_CHIPS 75 80 89 90a 100 120 CACHE STRING "NVIDIA chips that get code: sm_...")
if(CMAKE_CUDA_COMPILER AND LOCKSTEP_CUDA AND CMAKE_CUDA_COMPILER_LOADED)
  file(GLOB cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/emulation/verify/nvidia/*.cu
    ${CMAKE_SOURCE_DIR}/emulation/kernels/cuda/*.cu)
  add_library(lockstep_cuda OBJECT ${cuda_sources})
  # Not lockstep_flags: nvcc supports neither those warnings nor -ffp-contract.
  target_include_directories(lockstep_cuda PRIVATE ${CMAKE_SOURCE_DIR})
  set_target_properties(lockstep_cuda PROPERTIES CUDA_ARCHITECTURES OFF)
  set(gencode "")
  foreach(chip IN LISTS LOCKSTEP_CUDA_CHIPS)
    list(APPEND gencode "SHELL:-gencode arch=compute_${chip},code=sm_${chip}")
  endforeach()
  target_compile_options(lockstep_cuda PRIVATE ${gencode} -fmad=false --expt-relaxed-constexpr
    -Xcompiler=-Wall,-Wextra,-Wno-unused-parameter,-ffp-contract=off)
  if(LOCKSTEP_WERROR)
    target_compile_options(lockstep_cuda PRIVATE -Werror=all-warnings)
  endif()
  target_sources(lockstep_emulation PRIVATE $<TARGET_OBJECTS:lockstep_cuda>)
  set(cuda_users emulation/verify/nvidia/mma_device.cc emulation/kernels/cuda/cublas_device.cc
    emulation/kernels/cuda/gpu_presence.cc)
  find_package(CUDAToolkit REQUIRED)
  set_source_files_properties(${cuda_users} PROPERTIES COMPILE_DEFINITIONS LOCKSTEP_CUDA
    INCLUDE_DIRECTORIES "${CUDAToolkit_INCLUDE_DIRS}")
  target_link_libraries(lockstep_emulation PUBLIC $<LINK_ONLY:CUDA::cudart_static>)
  message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER_VERSION}, code for sm_ ${LOCKSTEP_CUDA_CHIPS}")
endif()
