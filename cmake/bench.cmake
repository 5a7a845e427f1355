# One program per file bench/bench_*.cc, all on bench/ratio.h; `./dev bench` runs them.
find_package(benchmark REQUIRED)
find_library(LOCKSTEP_DNNL dnnl REQUIRED)   # what gemm is measured against
add_library(lockstep_bench STATIC ${CMAKE_SOURCE_DIR}/bench/ratio.cc)
target_link_libraries(lockstep_bench PUBLIC lockstep_emulation)
file(GLOB bench_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/bench/bench_*.cc)
foreach(file IN LISTS bench_files)
  get_filename_component(name ${file} NAME_WE)
  add_executable(${name} ${file})
  target_link_libraries(${name} PRIVATE lockstep_bench benchmark::benchmark ${LOCKSTEP_DNNL})
endforeach()
