# Whole-program tests in Python (tests/integration/FOLDER), one ctest entry per file. They need an interpreter
# with pytest, h5py, numpy and torch: `./dev` creates one and passes -DLOCKSTEP_PYTHON. PyTorch gets one thread: as
# many files run at once as there are cores.
set(LOCKSTEP_PYTHON "" CACHE FILEPATH "Python interpreter for the whole-program tests")
if(NOT LOCKSTEP_PYTHON)
  # One skipped test reports that these did not run.
  add_test(NAME integration COMMAND ${CMAKE_COMMAND} -E echo
    "SKIPPED: whole-program tests: no LOCKSTEP_PYTHON (./dev test makes one)")
  set_tests_properties(integration PROPERTIES LABELS everyday)
endif()
# lockstep_integration_tests(FOLDER LABEL NAME...): test_NAME.py of that folder.
function(lockstep_integration_tests folder label)
  foreach(name IN LISTS ARGN)
    set_property(GLOBAL APPEND PROPERTY lockstep_integration_tests ${folder}/test_${name}.py)
    if(NOT LOCKSTEP_PYTHON)
      continue()
    endif()
    add_test(NAME integration.${name}
      COMMAND ${LOCKSTEP_PYTHON} -m pytest -q -rs -s -p no:cacheprovider
              ${CMAKE_SOURCE_DIR}/tests/integration/${folder}/test_${name}.py)
    set_tests_properties(integration.${name} PROPERTIES LABELS ${label}
      ENVIRONMENT
      "LOCKSTEP_BINARY_DIR=${CMAKE_BINARY_DIR};PYTHONDONTWRITEBYTECODE=1;OMP_NUM_THREADS=1")
  endforeach()
endfunction()
lockstep_integration_tests(capture everyday capture_torch capture_ops capture_casts capture_composed
  capture_file capture_paths capture_loops capture_functions capture_narrow capture_lines capture_script_lines capture_debug
  capture_mistakes capture_views capture_real_ops capture_robust capture_state capture_first_touch
  capture_floors capture_vision capture_fake_quantize capture_optimizers
  capture_compiled capture_batches capture_needs capture_complex capture_updates capture_matrices capture_idioms
  capture_dtypes capture_hooks parts monitor_counts)
lockstep_integration_tests(capture slow capture_memory capture_wrappers capture_models capture_trainers
  pytorch_guide capture_kernels capture_decisions capture_unsupported capture_shapes capture_gradients
  parts_on_ranks capture_trigger trigger_on_ranks monitor monitor_on_ranks)
lockstep_integration_tests(captured everyday recommend_next captured_losses equal_weights sums pytorch_scaled watched
  remedies_tried emitted_transformer_engine emitted_fsdp2)
lockstep_integration_tests(captured slow recommend_search recommend_parts findings recommend_sensitivity recommend_fix
  pytorch_module check_edits threads captures)
lockstep_integration_tests(check everyday check_own)
lockstep_integration_tests(check slow check_mutants check_planted check_kernels check_pytest check_ci
  check_baselines check_refactors)
lockstep_integration_tests(run everyday run_file report_page charts_build check_outputs report_live export_run
  save_values masks start_from hostile_input write_errors damaged_files)
lockstep_integration_tests(run slow kill_resume syscall_faults mnist report_models step_costs same_bits
  phenomena read_run report_browser statistics_every cuda_host report_charts disk_full software_device
  report_formats printed_commands demo)
lockstep_integration_tests(compare everyday torch_models torch_ops_shapes torch_ops_nn torch_optimizers
  torch_casts torch_attention torch_bf16_recurrent torch_loss_scale torch_loss_passes torch_recipe
  torch_cuda_parts ml_dtypes scaled_linear torchao_recipes blockwise_recipes emitted_torchao)
lockstep_integration_tests(compare slow torch_bf16 torch_fsdp torch_ops_elementwise)
lockstep_integration_tests(study everyday recipes torch_api)
lockstep_integration_tests(study slow learning diagnosis fixes zoo zoo_recipes kills torch_versions)
lockstep_integration_tests(study study study_learning study_recipes study_recipes_2026 study_diagnosis study_fixes
  study_torch_versions study_recommendations study_zoo study_check study_kills study_damage study_faults study_reports
  study_parts study_triggers)
if(LOCKSTEP_PYTHON)   # the longest start first
  set_tests_properties(integration.learning integration.kill_resume integration.zoo_recipes
    integration.check_mutants integration.torch_versions PROPERTIES COST 500)
endif()
# A file without a row above would never run.
file(GLOB_RECURSE present CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}/tests/integration
  ${CMAKE_SOURCE_DIR}/tests/integration/test_*.py)
get_property(registered GLOBAL PROPERTY lockstep_integration_tests)
list(REMOVE_ITEM present ${registered})
if(present)
  message(FATAL_ERROR "tests/integration: without a row in cmake/integration_tests.cmake: ${present}")
endif()
