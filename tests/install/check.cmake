# Installs the build into a folder of its own, then configures, builds and runs the separate project beside this file.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGN}\nfailed with ${result}:\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE ${work})
run(${CMAKE_COMMAND} --install ${build} --prefix ${work}/prefix)
# The installed library knows the LibTorch that it was built for.
run(${CMAKE_COMMAND} -G Ninja -S ${source} -B ${work}/build -DCMAKE_PREFIX_PATH=${work}/prefix -DCMAKE_BUILD_TYPE=Release)
run(${CMAKE_COMMAND} --build ${work}/build)
run(${work}/build/consumer)
if(EXISTS ${work}/prefix/bin/meshtorch-llama)
  run(${CMAKE_COMMAND} -E env --unset=LD_LIBRARY_PATH ${work}/prefix/bin/meshtorch-llama --help)
endif()
run(${work}/prefix/bin/meshtorch-run -n 2 --timeout 60 ${work}/build/consumer)

# Another version is refused in words.
file(MAKE_DIRECTORY ${work}/other/include/ATen/core ${work}/other/include/torch/headeronly ${work}/other/lib)
file(TOUCH ${work}/other/include/ATen/core/Tensor.h ${work}/other/lib/libtorch_cpu.so)
file(WRITE ${work}/other/include/torch/headeronly/version.h "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 99\n#define TORCH_VERSION_PATCH 1\n")
execute_process(COMMAND ${CMAKE_COMMAND} -G Ninja -S ${source} -B ${work}/refused -DCMAKE_PREFIX_PATH=${work}/prefix -DMESHTORCH_LIBTORCH=${work}/other
                RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
string(REGEX REPLACE "[ \n]+" " " output "${output}")
if(result EQUAL 0 OR NOT output MATCHES "built for LibTorch [0-9.]+, and .*/other is 2.99.1, which is not binary compatible; do: build meshtorch for it")
  message(FATAL_ERROR "another LibTorch was not refused:\n${output}")
endif()
