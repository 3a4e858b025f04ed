# Finds LibTorch by its files: a torch wheel, an unpacked libtorch, or conda's. TorchConfig.cmake is not used, since it stops
# without a CUDA toolkit where LibTorch is a CUDA build. Installed beside meshtorchConfig.cmake, which includes it too.
#
# Looks, in this order, at MESHTORCH_LIBTORCH (a folder with include/ and lib/), Torch_DIR, CMAKE_PREFIX_PATH, the folders in
# MESHTORCH_LIBTORCH_HINTS, and the Python in MESHTORCH_LIBTORCH_PYTHON. Without LibTorch, MESHTORCH_LIBTORCH_PROBLEM says why.
# Sets MESHTORCH_LIBTORCH_FOLDER, MESHTORCH_LIBTORCH_VERSION (2.15.0), MESHTORCH_LIBTORCH_HAS_CUDA, and makes the target
# meshtorch::libtorch; for a CUDA build also meshtorch::libtorch_cuda, for programs that use CUDA tensors.
set(MESHTORCH_LIBTORCH_OLDEST 2.13)
set(MESHTORCH_LIBTORCH_NEWEST 2.15)

# Sets `folder` to the LibTorch that `place` lies in or is, or leaves it as it was.
function(meshtorch_libtorch_at place folder)
  cmake_path(NORMAL_PATH place)
  string(REGEX REPLACE "/+$" "" place "${place}")
  string(REGEX REPLACE "/share/cmake(/Torch)?$" "" place "${place}")
  if(EXISTS "${place}/include/ATen/core/Tensor.h" AND EXISTS "${place}/lib/libtorch_cpu.so")
    set(${folder} "${place}" PARENT_SCOPE)
  endif()
endfunction()

function(meshtorch_find_libtorch)
  set(found "")
  if(MESHTORCH_LIBTORCH)
    meshtorch_libtorch_at("${MESHTORCH_LIBTORCH}" found)
    if(NOT found)
      set(MESHTORCH_LIBTORCH_PROBLEM "MESHTORCH_LIBTORCH is ${MESHTORCH_LIBTORCH}, where include/ATen and lib/libtorch_cpu.so are not" PARENT_SCOPE)
      return()
    endif()
  endif()
  cmake_path(CONVERT "$ENV{CMAKE_PREFIX_PATH}" TO_CMAKE_PATH_LIST prefixes)
  foreach(place IN LISTS Torch_DIR CMAKE_PREFIX_PATH prefixes MESHTORCH_LIBTORCH_HINTS)
    if(NOT found)
      meshtorch_libtorch_at("${place}" found)
    endif()
  endforeach()
  if(NOT found AND MESHTORCH_LIBTORCH_PYTHON)
    # Asked without an import: a torch without its CUDA libraries cannot be imported, but C++ programs run with it.
    execute_process(COMMAND ${MESHTORCH_LIBTORCH_PYTHON} -c
                            "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
                    OUTPUT_VARIABLE place OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE result)
    if(result EQUAL 0)
      meshtorch_libtorch_at("${place}" found)
    endif()
  endif()
  if(NOT found)
    set(MESHTORCH_LIBTORCH_PROBLEM "LibTorch was not found" PARENT_SCOPE)
    return()
  endif()

  set(version "")
  foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(NOT version AND EXISTS "${found}/include/${header}")
      file(READ "${found}/include/${header}" text)
      foreach(part MAJOR MINOR PATCH)
        if(text MATCHES "define TORCH_VERSION_${part} ([0-9]+)")
          list(APPEND version ${CMAKE_MATCH_1})
        endif()
      endforeach()
    endif()
  endforeach()
  list(JOIN version . version)
  set(MESHTORCH_LIBTORCH_FOLDER "${found}" PARENT_SCOPE)
  set(MESHTORCH_LIBTORCH_VERSION "${version}" PARENT_SCOPE)
  set(has_cuda OFF)
  if(EXISTS "${found}/lib/libtorch_cuda.so")
    set(has_cuda ON)
  endif()
  set(MESHTORCH_LIBTORCH_HAS_CUDA ${has_cuda} PARENT_SCOPE)

  if(NOT TARGET meshtorch::libtorch)
    # Not libtorch.so: in a CUDA build it would bring all CUDA libraries into every program. What libtorch_cpu.so itself needs
    # of them is found at run time by its own RUNPATH, which not every linker follows.
    add_library(meshtorch::libtorch INTERFACE IMPORTED GLOBAL)
    set_target_properties(meshtorch::libtorch PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${found}/include;${found}/include/torch/csrc/api/include"
      INTERFACE_COMPILE_DEFINITIONS USE_DISTRIBUTED
      INTERFACE_LINK_LIBRARIES "${found}/lib/libtorch_cpu.so;${found}/lib/libc10.so"
      INTERFACE_LINK_OPTIONS "LINKER:--allow-shlib-undefined")
  endif()
  if(has_cuda AND NOT TARGET meshtorch::libtorch_cuda)
    add_library(meshtorch::libtorch_cuda INTERFACE IMPORTED GLOBAL)
    set_target_properties(meshtorch::libtorch_cuda PROPERTIES INTERFACE_LINK_LIBRARIES
      "meshtorch::libtorch;-Wl,--push-state,--no-as-needed;${found}/lib/libtorch_cuda.so;${found}/lib/libc10_cuda.so;-Wl,--pop-state")
  endif()
endfunction()

meshtorch_find_libtorch()
