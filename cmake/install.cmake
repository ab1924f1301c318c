# find_package(rmsnorm) gives rmsnorm::rmsnorm: the library, without the program's dependencies.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(targets rmsnorm_operator rmsnorm_kernels_cpu)
if(RMSNORM_CUDA)
  list(APPEND targets rmsnorm_kernels_cuda rmsnorm_kernels_policy)
endif()
install(TARGETS ${targets} EXPORT rmsnorm ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(RMSNORM_PROGRAM)
  install(TARGETS rmsnorm RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY include/rmsnorm DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/rmsnorm)
install(EXPORT rmsnorm NAMESPACE rmsnorm:: DESTINATION ${package_dir})
configure_package_config_file(cmake/rmsnorm-config.cmake.in ${PROJECT_BINARY_DIR}/rmsnorm-config.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/rmsnorm-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/rmsnorm-config.cmake ${PROJECT_BINARY_DIR}/rmsnorm-config-version.cmake
  cmake/torch.cmake DESTINATION ${package_dir})
