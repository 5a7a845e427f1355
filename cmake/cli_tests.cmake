# Tests of the program's command line: bash scripts in tests/cli, one ctest entry each. They get the program's path.
foreach(name bad_input commands dot help list round stop_and_resume verify)
  add_test(NAME cli.${name}
    COMMAND bash ${CMAKE_SOURCE_DIR}/tests/cli/${name}.sh $<TARGET_FILE:lockstep>)
  set_tests_properties(cli.${name} PROPERTIES LABELS everyday)
  if(LOCKSTEP_PYTHON)
    set_tests_properties(cli.${name} PROPERTIES ENVIRONMENT "LOCKSTEP_PYTHON=${LOCKSTEP_PYTHON}")
  endif()
endforeach()
