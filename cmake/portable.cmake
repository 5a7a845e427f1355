# lockstep_portable: the program of the wheel (`./dev wheel`). The same objects as lockstep, linked anew: every library
# but glibc's and libgcc is inside, and glibc 2.34 is enough.
set(LOCKSTEP_LIBRARY_SOURCES "" CACHE PATH "Debian's sources of highway and cpp-httplib, for lockstep_portable")
if(NOT LOCKSTEP_LIBRARY_SOURCES)
  return()
endif()

# Debian offers four of the libraries as shared ones only. Two are all in their headers, two have other sources.
file(GLOB highway_targets ${LOCKSTEP_LIBRARY_SOURCES}/highway-*/hwy/targets.cc)
file(GLOB httplib_split ${LOCKSTEP_LIBRARY_SOURCES}/cpp-httplib-*/split.py)
if(NOT highway_targets OR NOT httplib_split)
  message(FATAL_ERROR "LOCKSTEP_LIBRARY_SOURCES=${LOCKSTEP_LIBRARY_SOURCES}: without highway-*/hwy/targets.cc or "
                      "cpp-httplib-*/split.py; `./dev wheel` gets them")
endif()
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(httplib ${CMAKE_BINARY_DIR}/portable/httplib.cc)
add_custom_command(OUTPUT ${httplib}
  COMMAND ${Python3_EXECUTABLE} ${httplib_split} --out ${CMAKE_BINARY_DIR}/portable
  DEPENDS ${httplib_split} VERBATIM)
add_library(lockstep_portable_libraries OBJECT EXCLUDE_FROM_ALL ${highway_targets} ${httplib}
  ${CMAKE_SOURCE_DIR}/cmake/portable/fmt.cc ${CMAKE_SOURCE_DIR}/cmake/portable/toml.cc
  ${CMAKE_SOURCE_DIR}/cmake/portable/older_glibc.cc)
target_link_libraries(lockstep_portable_libraries PRIVATE fmt::fmt hwy tomlplusplus::tomlplusplus PkgConfig::CPP_HTTPLIB)
target_compile_options(lockstep_portable_libraries PRIVATE -ffunction-sections)   # for --gc-sections

# Archives by their paths: by name, each would bring the shared libraries that it needs.
add_executable(lockstep_portable EXCLUDE_FROM_ALL $<TARGET_OBJECTS:lockstep>
  $<TARGET_OBJECTS:lockstep_portable_libraries>)
set_target_properties(lockstep_portable PROPERTIES LINKER_LANGUAGE CXX)
get_property(own GLOBAL PROPERTY lockstep_libraries)
list(REVERSE own)
foreach(name IN LISTS own)
  add_dependencies(lockstep_portable ${name})
  target_link_libraries(lockstep_portable PRIVATE $<TARGET_FILE:${name}>)
endforeach()
foreach(name hdf5 sz aec ssl crypto z brotlienc brotlidec brotlicommon)
  find_library(LOCKSTEP_ARCHIVE_${name} lib${name}.a PATH_SUFFIXES hdf5/serial REQUIRED)
  target_link_libraries(lockstep_portable PRIVATE ${LOCKSTEP_ARCHIVE_${name}})
endforeach()
if(TARGET lockstep_cuda)
  target_link_libraries(lockstep_portable PRIVATE CUDA::cudart_static)
endif()
target_link_libraries(lockstep_portable PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
target_link_options(lockstep_portable PRIVATE -static-libstdc++ -Wl,--gc-sections,--strip-all,--wrap=hypot,--wrap=arc4random)
