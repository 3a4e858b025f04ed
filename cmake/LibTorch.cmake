# Finds LibTorch: in CMAKE_PREFIX_PATH, or in the Python that pip runs or MESHTORCH_PYTHON names, or in the project's own .venv.
if(DEFINED Python_EXECUTABLE)
  set(meshtorch_python "${Python_EXECUTABLE}")
elseif(DEFINED ENV{MESHTORCH_PYTHON} AND NOT "$ENV{MESHTORCH_PYTHON}" STREQUAL "")
  set(meshtorch_python "$ENV{MESHTORCH_PYTHON}")
elseif(EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/.venv/bin/python")
  set(meshtorch_python "${CMAKE_CURRENT_SOURCE_DIR}/.venv/bin/python")
else()
  set(meshtorch_python python3)
endif()
find_package(Torch CONFIG QUIET)
if(NOT Torch_FOUND)
  execute_process(
    COMMAND ${meshtorch_python} -c "import torch; print(torch.utils.cmake_prefix_path)"
    OUTPUT_VARIABLE torch_prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "LibTorch was not found: run `make setup`, or point CMAKE_PREFIX_PATH at a LibTorch or MESHTORCH_PYTHON at a Python that has torch 2.13")
  endif()
  find_package(Torch CONFIG REQUIRED PATHS "${torch_prefix}" NO_DEFAULT_PATH)
endif()

# The wheel leaves out Gloo's headers; the code is inside libtorch_cpu.
find_path(GLOO_INCLUDE_DIR gloo/context.h)
if(NOT GLOO_INCLUDE_DIR)
  message(FATAL_ERROR "The Gloo headers were not found: run `apt-get install libgloo-dev`")
endif()
