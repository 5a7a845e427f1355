# Writes FILES as rows {"file name", R"toml(text)toml"}, into OUTPUT.
set(text "")
foreach(file IN LISTS FILES)
  get_filename_component(name ${file} NAME)
  file(READ ${file} content)
  string(APPEND text "{\"${name}\", R\"toml(${content})toml\"},\n")
endforeach()
file(WRITE ${OUTPUT} "${text}")
