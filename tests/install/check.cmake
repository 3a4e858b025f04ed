# Installs the build into a folder of its own, then configures, builds and runs the separate project beside this file.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGN}\nfailed with ${result}:\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE ${work})
run(${CMAKE_COMMAND} --install ${build} --prefix ${work}/prefix)
run(${CMAKE_COMMAND} -G Ninja -S ${source} -B ${work}/build "-DCMAKE_PREFIX_PATH=${work}/prefix\\;${torch}"
    -DCMAKE_BUILD_TYPE=Release)
run(${CMAKE_COMMAND} --build ${work}/build)
run(${work}/build/consumer)
if(EXISTS ${work}/prefix/bin/meshtorch-llama)
  run(${CMAKE_COMMAND} -E env --unset=LD_LIBRARY_PATH ${work}/prefix/bin/meshtorch-llama --help)
endif()
run(${work}/prefix/bin/meshtorch-run -n 2 --timeout 60 ${work}/build/consumer)
