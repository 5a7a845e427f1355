# tests/fuzz: mutated inputs for every reader of files and texts.
file(GLOB fuzz_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/*.cc)
list(FILTER fuzz_sources EXCLUDE REGEX "/(driver|campaign|test_campaign|guided).cc$")
foreach(name capture_file damage_graph damage_hdf5 damage_tree seed_graphs)
  list(APPEND fuzz_sources ${CMAKE_SOURCE_DIR}/tests/record/capture/${name}.cc)
endforeach()
add_library(lockstep_fuzz_targets STATIC ${fuzz_sources})
target_link_libraries(lockstep_fuzz_targets PUBLIC lockstep_cli PRIVATE OpenSSL::Crypto)
target_compile_options(lockstep_fuzz_targets PRIVATE ${test_optimization})
lockstep_unity(lockstep_fuzz_targets)
set(fuzz ${CMAKE_SOURCE_DIR}/tests/fuzz)
# The driver, which needs no particular compiler.
add_executable(lockstep_fuzz ${fuzz}/driver.cc ${fuzz}/campaign.cc ${fuzz}/test_campaign.cc)
target_link_libraries(lockstep_fuzz PRIVATE lockstep_fuzz_targets)
# Guided by coverage: Clang only (preset fuzz).
if(LOCKSTEP_LIBFUZZER)
  # Kernels read nothing from outside; without instrumentation they compile in a third of the time. Clang 16 crashes
  # on the BF16 intrinsics when it optimises.
  file(GLOB_RECURSE kernels ${CMAKE_SOURCE_DIR}/emulation/kernels/*.cc)
  set_source_files_properties(${kernels} PROPERTIES COMPILE_OPTIONS -fno-sanitize=all)
  set_source_files_properties(${CMAKE_SOURCE_DIR}/emulation/kernels/cpu/gemm_bf16.cc
    PROPERTIES COMPILE_OPTIONS "-fno-sanitize=all;-O0")
  add_executable(lockstep_fuzz_guided ${fuzz}/guided.cc)
  target_link_libraries(lockstep_fuzz_guided PRIVATE lockstep_fuzz_targets)
  target_link_options(lockstep_fuzz_guided PRIVATE -fsanitize=fuzzer)
endif()

# Every file of the corpus, everyday; a minute of new inputs, other ones each day, where `./dev test --slow` runs the
# sanitizers. A crash that needs no sanitizer needs more inputs: `./dev study fuzz`.
add_test(NAME fuzz.corpus COMMAND lockstep_fuzz --corpus ${fuzz}/corpus)
add_test(NAME fuzz.planted COMMAND lockstep_fuzz --test)   # the driver finds planted faults
set_tests_properties(fuzz.corpus fuzz.planted PROPERTIES LABELS everyday)
add_test(NAME fuzz.minute
  COMMAND lockstep_fuzz --seconds 60 --seed-of-day --out ${CMAKE_BINARY_DIR}/fuzz-findings)
set_tests_properties(fuzz.minute PROPERTIES LABELS fuzz COST 1000)
