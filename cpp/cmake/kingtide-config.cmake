# Finds what was installed beside this file: the targets kingtide::kingtide (shared) and kingtide::static.
get_filename_component(_kingtide_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

include(CMakeFindDependencyMacro)
find_dependency(Threads)

if(NOT TARGET kingtide::kingtide)
  add_library(kingtide::kingtide SHARED IMPORTED)
  set_target_properties(kingtide::kingtide PROPERTIES
    IMPORTED_LOCATION "${_kingtide_prefix}/lib/libkingtide.so"
    IMPORTED_SONAME "libkingtide.so.@ABI@"
    INTERFACE_INCLUDE_DIRECTORIES "${_kingtide_prefix}/include")
  # kingtide.hpp waits between attempts of a transaction, with std::this_thread.
  set_property(TARGET kingtide::kingtide PROPERTY INTERFACE_LINK_LIBRARIES Threads::Threads)

  add_library(kingtide::static STATIC IMPORTED)
  set_target_properties(kingtide::static PROPERTIES
    IMPORTED_LOCATION "${_kingtide_prefix}/lib/libkingtide.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_kingtide_prefix}/include"
    INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};m")
endif()

unset(_kingtide_prefix)
