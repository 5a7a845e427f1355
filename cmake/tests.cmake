# One doctest program per folder of the list below, its folders within included. Test cases in the suite
# "slow" run under the ctest label slow, those in "study" under study (as do some of the whole programs of
# cmake/integration_tests.cmake), all others under everyday.
enable_testing()
# Only this file knows the clone's folders, so that ccache serves other clones.
set_source_files_properties(tests/doctest_main.cc PROPERTIES SKIP_PRECOMPILE_HEADERS ON COMPILE_DEFINITIONS
  "LOCKSTEP_SOURCE_DIR=\"${CMAKE_SOURCE_DIR}\";LOCKSTEP_BINARY_DIR=\"${CMAKE_BINARY_DIR}\"")
add_library(lockstep_doctest_main OBJECT ${CMAKE_SOURCE_DIR}/tests/doctest_main.cc)
target_link_libraries(lockstep_doctest_main PRIVATE lockstep_flags doctest::doctest)
# Compiling test code takes longer than running it, except for emulation, whose tests compute the expected
# bits of billions of values.
set(test_optimization -O1)
if(LOCKSTEP_SANITIZE)
  set(test_optimization -O0)
endif()
function(lockstep_slow_entry name program)
  add_test(NAME ${name} COMMAND test_${program} --test-suite=slow ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS slow)
endfunction()
# lockstep_tests(NAME [SPLIT] [FOLDER FOLDER] LIBRARY...): the program test_NAME from tests/FOLDER, by default
# tests/NAME. SPLIT: its slow cases have separate entries.
function(lockstep_tests name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "SPLIT" "FOLDER" "")
  if(NOT arg_FOLDER)
    set(arg_FOLDER ${name})
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${arg_FOLDER}/*.cc)
  if(NOT arg_FOLDER MATCHES "/")   # these are separate programs
    list(FILTER sources EXCLUDE REGEX "/tests/(record/capture|emulation/cuda)/")
  endif()
  add_executable(test_${name} ${sources})
  target_link_libraries(test_${name} PRIVATE ${arg_UNPARSED_ARGUMENTS} doctest::doctest lockstep_doctest_main)
  if(NOT arg_FOLDER MATCHES "^emulation")
    target_compile_options(test_${name} PRIVATE ${test_optimization})
  endif()
  if(NOT LOCKSTEP_SANITIZE)
    lockstep_use_pch(test_${name})   # which fits no -O0
  endif()
  lockstep_unity(test_${name})
  add_test(NAME ${name} COMMAND test_${name} --test-suite-exclude=slow,study)
  set_tests_properties(${name} PROPERTIES LABELS everyday)
  if(NOT arg_SPLIT)
    lockstep_slow_entry(${name}.slow ${name})
  endif()
endfunction()
lockstep_tests(core lockstep_core)
lockstep_tests(emulation lockstep_emulation Boost::headers Eigen3::Eigen ZLIB::ZLIB)
# The engine cuda on the host, and on a GPU where there is one.
lockstep_tests(cuda SPLIT FOLDER emulation/cuda lockstep_emulation)
# Every FP32 input: of the formats that have names, and of all others (hours).
set(named_formats "*every named format*,*saturating and flushing*")
add_test(NAME emulation.study_formats COMMAND test_emulation --test-suite=study --test-case=${named_formats})
add_test(NAME emulation.study COMMAND test_emulation --test-suite=study --test-case-exclude=${named_formats})
set_tests_properties(emulation.study emulation.study_formats PROPERTIES LABELS study)
# Tests of cast classes and policies check the lowered step.
lockstep_tests(graph lockstep_lower)
lockstep_tests(policy lockstep_lower)
foreach(name lower execute update data models train monitor jobs analysis)
  lockstep_tests(${name} lockstep_${name})
endforeach()
# Tests of a monitor's run file write one of its stream.
lockstep_tests(record lockstep_monitor)
# Damaged files are slow under a sanitizer, so the slow cases run as three entries.
lockstep_tests(capture SPLIT FOLDER record/capture lockstep_faithful OpenSSL::Crypto)
lockstep_slow_entry(capture.slow capture --test-case-exclude=*HDF5*,*graphs*)
lockstep_slow_entry(capture.slow_graphs capture --test-case=*graphs*)
lockstep_slow_entry(capture.slow_hdf5 capture --test-case=*HDF5*)
# The longest tests start first.
set_tests_properties(emulation.slow capture.slow capture.slow_graphs capture.slow_hdf5 train record
  PROPERTIES COST 1000)
lockstep_tests(reports lockstep_reports)
# Programs that compute one thing on raw files, for the comparisons of tests/integration.
function(lockstep_tool name library)
  add_executable(lockstep_${name}_tool ${CMAKE_SOURCE_DIR}/tests/tools/${name}_tool.cc)
  target_link_libraries(lockstep_${name}_tool PRIVATE ${library})
endfunction()
lockstep_tool(step lockstep_train)        # one FP64 step, against PyTorch's
lockstep_tool(loss lockstep_train)        # steps with a backward pass per loss, against several GradScalers
lockstep_tool(optimizer lockstep_train)   # optimizer steps, against torch.optim
lockstep_tool(format lockstep_emulation)  # formats, against ml_dtypes
lockstep_tool(op lockstep_train)          # one op, against PyTorch's
lockstep_tool(scaler lockstep_policy)     # loss scalers on given overflows, against GradScaler
lockstep_tool(gpu_products lockstep_emulation)  # the engine cuda on a GPU, against the models of tensor cores
lockstep_tool(recipe lockstep_reports)  # policies as Python modules, against PyTorch
# Lockstep itself with one defect in its kernels, for tests/integration/check/test_check_kernels.py. The linker puts
# planted_kernels.cc's functions in the place of two of the program's, so that the program needs no hook.
file(GLOB planted_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/tools/planted/*.cc)
lockstep_program(lockstep_planted ${planted_sources})
target_link_options(lockstep_planted PRIVATE -Wl,--wrap=_ZN8lockstep14active_kernelsEv
  -Wl,--wrap=_ZN8lockstep23software_engine_kernelsEv)
