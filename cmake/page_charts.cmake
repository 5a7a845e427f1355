# The charts of HTML reports: reports/page/charts/ and the parts of Apache ECharts that they use, as one
# script, ${CMAKE_BINARY_DIR}/page/charts.js. npm installs ECharts and esbuild into the build folder while CMake
# configures, in the versions of package-lock.json. Without npm or a network the script is empty: HTML reports
# then have a table in place of each chart, and say so.
set(LOCKSTEP_CHARTS AUTO CACHE STRING "Charts in HTML reports, which needs npm: AUTO, ON, OFF")
set(charts_source ${CMAKE_CURRENT_LIST_DIR}/../reports/page)
set(charts_folder ${CMAKE_BINARY_DIR}/page)
set(charts_script ${charts_folder}/charts.js)

# Sets charts_missing to what is in the way, "" if nothing is.
function(lockstep_install_charts)
  set(charts_missing "" PARENT_SCOPE)
  find_program(LOCKSTEP_NPM npm)
  find_program(LOCKSTEP_NODE NAMES node nodejs)
  if(NOT LOCKSTEP_NPM OR NOT LOCKSTEP_NODE)
    set(charts_missing "npm was not found" PARENT_SCOPE)
    return()
  endif()
  file(SHA256 ${charts_source}/package-lock.json wanted)
  set(stamp ${charts_folder}/installed.txt)
  if(EXISTS ${stamp})
    file(READ ${stamp} installed)
    if(installed STREQUAL wanted)
      return()
    endif()
  endif()
  file(REMOVE ${stamp})
  file(COPY ${charts_source}/package.json ${charts_source}/package-lock.json DESTINATION ${charts_folder})
  execute_process(
    COMMAND ${LOCKSTEP_NPM} ci --ignore-scripts --no-audit --no-fund --fetch-retries=1
            --fetch-retry-mintimeout=1000 --loglevel=error
    WORKING_DIRECTORY ${charts_folder} RESULT_VARIABLE failed OUTPUT_FILE ${charts_folder}/npm.log
    ERROR_FILE ${charts_folder}/npm.log)
  if(failed)
    set(charts_missing "npm could not install echarts and esbuild (${charts_folder}/npm.log says why)" PARENT_SCOPE)
    return()
  endif()
  file(WRITE ${stamp} ${wanted})
endfunction()

set(charts_missing "LOCKSTEP_CHARTS is OFF")
if(NOT LOCKSTEP_CHARTS STREQUAL "OFF")
  lockstep_install_charts()
endif()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${charts_source}/package-lock.json)
if(charts_missing)
  set(charts_text "HTML reports will have tables and no charts: ${charts_missing}.")
  if(LOCKSTEP_CHARTS STREQUAL "ON")
    message(FATAL_ERROR "LOCKSTEP_CHARTS is ON, but ${charts_missing}.")
  elseif(LOCKSTEP_CHARTS STREQUAL "OFF")
    message(STATUS "${charts_text}")
  else()
    message(WARNING "${charts_text}")
  endif()
  file(WRITE ${charts_script} "")
else()
  file(GLOB charts_modules CONFIGURE_DEPENDS ${charts_source}/charts/*.js)
  # The licences' text is at the head of the script, since a report is a copy of it.
  add_custom_command(
    OUTPUT ${charts_script}
    COMMAND ${CMAKE_COMMAND} -E env NODE_PATH=${charts_folder}/node_modules
            ${LOCKSTEP_NODE} ${charts_folder}/node_modules/esbuild/bin/esbuild ${charts_source}/charts/main.js
            --bundle --minify --format=iife --target=es2020 --legal-comments=none --log-level=warning
            "--define:process.env.NODE_ENV=\"production\"" --outfile=${charts_folder}/bundle.js
    COMMAND ${CMAKE_COMMAND} -E cat ${charts_source}/licenses.txt ${charts_folder}/bundle.js > ${charts_script}
    DEPENDS ${charts_modules} ${charts_source}/licenses.txt ${charts_folder}/installed.txt
    VERBATIM)
endif()
