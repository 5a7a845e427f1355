# Whole-program tests in Python (tests/integration), one ctest entry per file. They need an interpreter
# with pytest, h5py, numpy and torch: `./dev` makes one and passes -DLOCKSTEP_PYTHON.
set(LOCKSTEP_PYTHON "" CACHE FILEPATH "Python interpreter for the whole-program tests")
if(NOT LOCKSTEP_PYTHON)
  # Counted, not silent: one skipped test says that these did not run.
  add_test(NAME integration COMMAND ${CMAKE_COMMAND} -E echo
    "SKIPPED: whole-program tests: no LOCKSTEP_PYTHON (./dev test makes one)")
  set_tests_properties(integration PROPERTIES LABELS everyday)
endif()
function(lockstep_integration_test name label)
  if(NOT LOCKSTEP_PYTHON)
    return()
  endif()
  add_test(NAME integration.${name}
    COMMAND ${LOCKSTEP_PYTHON} -m pytest -q -rs -s -p no:cacheprovider
            ${CMAKE_SOURCE_DIR}/tests/integration/test_${name}.py)
  set_tests_properties(integration.${name} PROPERTIES LABELS ${label}
    ENVIRONMENT "LOCKSTEP_BINARY_DIR=${CMAKE_BINARY_DIR};PYTHONDONTWRITEBYTECODE=1")
endfunction()
lockstep_integration_test(run_file everyday)
lockstep_integration_test(same_bits everyday)
lockstep_integration_test(torch_models everyday)
lockstep_integration_test(torch_ops_elementwise everyday)
lockstep_integration_test(torch_ops_shapes everyday)
lockstep_integration_test(torch_ops_nn everyday)
lockstep_integration_test(torch_optimizers everyday)
lockstep_integration_test(ml_dtypes everyday)
lockstep_integration_test(disk_full everyday)
lockstep_integration_test(kill_resume slow)
lockstep_integration_test(check_edits everyday)
lockstep_integration_test(mnist slow)
lockstep_integration_test(learning slow)
lockstep_integration_test(study_learning study)
lockstep_integration_test(study_seeds study)
