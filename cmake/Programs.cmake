# Programs on top of the library (examples, benchmarks, the small ones of tests) share one precompiled header. It fits only
# sources compiled alike: all of them take the flags of a library, -fPIC, and -O1, since their work is done in the library.
set(program_flags -fPIC $<$<CONFIG:Release>:-O1>)
add_library(program_headers OBJECT EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/cmake/programs/no_code.cc)
target_link_libraries(program_headers PRIVATE meshtorch::meshtorch)
target_compile_options(program_headers PRIVATE ${program_flags})
target_precompile_headers(program_headers PRIVATE ${PROJECT_SOURCE_DIR}/cmake/programs/precompiled.h)

function(meshtorch_compile_as_programs)
  foreach(target IN LISTS ARGN)
    target_compile_options(${target} PRIVATE ${program_flags})
    target_precompile_headers(${target} REUSE_FROM program_headers)
  endforeach()
endfunction()
