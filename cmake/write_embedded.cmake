# Writes FILES as rows {"file name", R"embedded(text)embedded"}, into OUTPUT.
set(text "")
foreach(file IN LISTS FILES)
  get_filename_component(name ${file} NAME)
  file(READ ${file} content)
  string(APPEND text "{\"${name}\", R\"embedded(${content})embedded\"},\n")
endforeach()
file(WRITE ${OUTPUT} "${text}")
