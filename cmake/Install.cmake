# What is installed: `cmake --install`, the wheel (tools: scikit-build-core), and `make package` (a .deb by CPack).
install(TARGETS meshtorch EXPORT meshtorchTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET meshtorch_nccl)
  install(TARGETS meshtorch_nccl LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(DIRECTORY include/meshtorch DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

set(cmake_folder ${CMAKE_INSTALL_LIBDIR}/cmake/meshtorch)
install(EXPORT meshtorchTargets NAMESPACE meshtorch:: DESTINATION ${cmake_folder})
if(SKBUILD)  # the torch package lies beside this one
  set(MESHTORCH_LIBTORCH_INSTALLED_HINTS "package:torch")
else()
  set(MESHTORCH_LIBTORCH_INSTALLED_HINTS "${MESHTORCH_LIBTORCH_FOLDER}")
endif()
configure_package_config_file(cmake/meshtorchConfig.cmake.in meshtorchConfig.cmake INSTALL_DESTINATION ${cmake_folder})
write_basic_package_version_file(meshtorchConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/meshtorchConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/meshtorchConfigVersion.cmake
              cmake/LibTorch.cmake DESTINATION ${cmake_folder})

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME libmeshtorch-dev)
set(CPACK_PACKAGE_VENDOR "The meshtorch developers")
set(CPACK_PACKAGE_CONTACT "The meshtorch developers <meshtorch@users.noreply.example>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_CURRENT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6, libstdc++6, libgcc-s1")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
    "${PROJECT_DESCRIPTION}: library, headers, CMake files and meshtorch-run.\n Built for LibTorch ${MESHTORCH_LIBTORCH_VERSION}, which is not in the package.")
include(CPack)
