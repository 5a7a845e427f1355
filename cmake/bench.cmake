# One google-benchmark program per file in bench/; `./dev bench` runs them.
find_package(benchmark REQUIRED)
find_library(LOCKSTEP_DNNL dnnl REQUIRED)   # what gemm is measured against
file(GLOB bench_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/bench/bench_*.cc)
foreach(file IN LISTS bench_files)
  get_filename_component(name ${file} NAME_WE)
  add_executable(${name} ${file})
  target_link_libraries(${name} PRIVATE lockstep_emulation benchmark::benchmark ${LOCKSTEP_DNNL})
endforeach()
