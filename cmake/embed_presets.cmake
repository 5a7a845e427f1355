# Turns src/policy/presets/*.toml into one C++ array, so that adding a file adds a preset.
file(GLOB preset_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/policy/presets/*.toml)
set(embedded ${CMAKE_BINARY_DIR}/generated/embedded_presets.inc)
add_custom_command(
  OUTPUT ${embedded}
  COMMAND ${CMAKE_COMMAND} -DOUTPUT=${embedded} "-DFILES=${preset_files}"
          -P ${CMAKE_SOURCE_DIR}/cmake/write_embedded.cmake
  DEPENDS ${preset_files} ${CMAKE_SOURCE_DIR}/cmake/write_embedded.cmake
  VERBATIM)
add_custom_target(lockstep_presets DEPENDS ${embedded})
