# One doctest program per folder under tests/. Test cases in the suite "slow" run under the ctest label
# slow, those in "study" under study (beside the whole programs of cmake/integration_tests.cmake), all
# others under everyday.
enable_testing()
# Its slow cases in more than one entry, below: damaged files take long under a sanitizer.
set(split_folders capture)
function(lockstep_slow_entry name folder)
  add_test(NAME ${name} COMMAND test_${folder} --test-suite=slow ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS slow)
endfunction()
function(lockstep_tests folder)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${folder}/*.cc)
  if(NOT sources)
    return()
  endif()
  add_executable(test_${folder} ${sources} ${CMAKE_SOURCE_DIR}/tests/doctest_main.cc)
  target_link_libraries(test_${folder} PRIVATE ${ARGN} doctest::doctest)
  target_compile_definitions(test_${folder} PRIVATE LOCKSTEP_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
    LOCKSTEP_BINARY_DIR="${CMAKE_BINARY_DIR}")
  add_test(NAME ${folder} COMMAND test_${folder} --test-suite-exclude=slow,study)
  set_tests_properties(${folder} PROPERTIES LABELS everyday)
  if(NOT folder IN_LIST split_folders)
    lockstep_slow_entry(${folder}.slow ${folder})
  endif()
endfunction()
lockstep_tests(core lockstep_core)
lockstep_tests(emulation lockstep_emulation Boost::headers Eigen3::Eigen ZLIB::ZLIB)
add_test(NAME emulation.study COMMAND test_emulation --test-suite=study)
set_tests_properties(emulation.study PROPERTIES LABELS study)
lockstep_tests(graph lockstep_graph)
lockstep_tests(train lockstep_train)
lockstep_tests(record lockstep_record)
lockstep_tests(analysis lockstep_analysis)
lockstep_tests(capture lockstep_analysis OpenSSL::Crypto)
lockstep_slow_entry(capture.slow capture --test-case-exclude=*HDF5*,*graphs*)
lockstep_slow_entry(capture.slow_graphs capture --test-case=*graphs*)
lockstep_slow_entry(capture.slow_hdf5 capture --test-case=*HDF5*)
# What takes longest begins first.
set_tests_properties(emulation.slow capture.slow capture.slow_graphs capture.slow_hdf5
  PROPERTIES COST 1000)
lockstep_tests(reports lockstep_reports)
# One FP64 step on raw files: what the PyTorch comparison of tests/integration runs.
add_executable(lockstep_step_tool ${CMAKE_SOURCE_DIR}/tests/train/step_tool/step_tool.cc)
target_link_libraries(lockstep_step_tool PRIVATE lockstep_train)
# Steps with a backward pass per loss: what the comparison with several GradScalers runs.
add_executable(lockstep_loss_tool ${CMAKE_SOURCE_DIR}/tests/train/loss_tool/loss_tool.cc)
target_link_libraries(lockstep_loss_tool PRIVATE lockstep_train)
# Optimizer steps on raw files, for the comparison with torch.optim.
add_executable(lockstep_optimizer_tool
  ${CMAKE_SOURCE_DIR}/tests/train/optimizer_tool/optimizer_tool.cc)
target_link_libraries(lockstep_optimizer_tool PRIVATE lockstep_train)
# Formats on raw files: what the ml_dtypes comparison of tests/integration runs.
add_executable(lockstep_format_tool ${CMAKE_SOURCE_DIR}/tests/emulation/format_tool/format_tool.cc)
target_link_libraries(lockstep_format_tool PRIVATE lockstep_emulation)
# One op on raw files: what the op by op PyTorch comparisons of tests/integration run.
add_executable(lockstep_op_tool ${CMAKE_SOURCE_DIR}/tests/graph/op_tool/op_tool.cc)
target_link_libraries(lockstep_op_tool PRIVATE lockstep_train)
# Loss scalers on given overflows: what the comparison with torch's GradScaler runs.
add_executable(lockstep_scaler_tool ${CMAKE_SOURCE_DIR}/tests/graph/scaler_tool/scaler_tool.cc)
target_link_libraries(lockstep_scaler_tool PRIVATE lockstep_graph)
