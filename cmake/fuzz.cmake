# tests/fuzz: mutated inputs for every reader of files and texts. lockstep_fuzz is the driver.
file(GLOB fuzz_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/*.cc)
set(capture_damage ${CMAKE_SOURCE_DIR}/tests/record/capture)
list(APPEND fuzz_sources ${capture_damage}/capture_file.cc ${capture_damage}/damage_graph.cc
  ${capture_damage}/damage_hdf5.cc ${capture_damage}/damage_tree.cc ${capture_damage}/seed_graphs.cc)
add_executable(lockstep_fuzz ${fuzz_sources})
target_link_libraries(lockstep_fuzz PRIVATE lockstep_cli OpenSSL::Crypto)
target_compile_options(lockstep_fuzz PRIVATE ${test_optimization})
