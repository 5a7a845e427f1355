# Text files that the program carries. lockstep_embed(NAME FILE...): the target NAME writes
# generated/NAME.inc, one row {"file name", "text"} per file.
function(lockstep_embed name)
  set(embedded ${CMAKE_BINARY_DIR}/generated/${name}.inc)
  add_custom_command(
    OUTPUT ${embedded}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${embedded} "-DFILES=${ARGN}"
            -P ${CMAKE_SOURCE_DIR}/cmake/write_embedded.cmake
    DEPENDS ${ARGN} ${CMAKE_SOURCE_DIR}/cmake/write_embedded.cmake
    VERBATIM)
  add_custom_target(lockstep_${name} DEPENDS ${embedded})
endfunction()

# Adding a file adds a preset.
file(GLOB preset_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/policy/presets/*.toml)
lockstep_embed(embedded_presets ${preset_files})
# What an HTML report carries.
include(cmake/page_charts.cmake)
set(page_folder ${CMAKE_SOURCE_DIR}/reports/page)
lockstep_embed(embedded_page ${page_folder}/page.css ${page_folder}/page.js ${charts_script})
# What its words mean, which `lockstep list words` prints.
lockstep_embed(embedded_glossary ${CMAKE_SOURCE_DIR}/docs/glossary.md)
# The Python module that `recommend` writes.
lockstep_embed(embedded_pytorch ${CMAKE_SOURCE_DIR}/reports/pytorch/templates/amp.py)
# What the live view of a run serves.
file(GLOB live_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/reports/live/*)
lockstep_embed(embedded_live ${live_files})
