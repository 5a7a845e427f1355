# One program per file bench/bench_*.cc, all on bench/ratio.h; `./dev bench` runs them.
find_package(OpenMP REQUIRED)               # oneDNN uses its threads
find_library(LOCKSTEP_DNNL dnnl REQUIRED)   # the peer of gemm
add_library(lockstep_bench STATIC ${CMAKE_SOURCE_DIR}/bench/ratio.cc)
target_link_libraries(lockstep_bench PUBLIC lockstep_emulation)
file(GLOB bench_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/bench/bench_*.cc)
foreach(file IN LISTS bench_files)
  get_filename_component(name ${file} NAME_WE)
  add_executable(${name} ${file})
  target_link_libraries(${name} PRIVATE lockstep_bench)
endforeach()
foreach(name bench_conv2d bench_gemm)
  target_link_libraries(${name} PRIVATE ${LOCKSTEP_DNNL} OpenMP::OpenMP_CXX)
endforeach()
target_link_libraries(bench_alternatives PRIVATE Eigen3::Eigen)
target_link_libraries(bench_step PRIVATE lockstep_train)
foreach(name bench_alternatives bench_step)  # they start Python scripts from bench/
  target_compile_definitions(${name} PRIVATE LOCKSTEP_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
endforeach()
