cmake_policy(VERSION 3.25)
# Installs into a folder of its own, then configures, builds and runs a project that knows nothing but
# find_package(rmsnorm), on a machine that is made to lack what only the program needs.
# -DBUILD_DIR= -DSOURCE_DIR= -DWORK_DIR= -DCXX= -DLIBTORCH= -DGENERATOR=
file(REMOVE_RECURSE ${WORK_DIR})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/prefix
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE_DIR}/tests/architecture/consumer -B ${WORK_DIR}/build -G ${GENERATOR}
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix
    -DRMSNORM_LIBTORCH=${LIBTORCH}
    -DCMAKE_DISABLE_FIND_PACKAGE_yaml-cpp=ON -DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON
    -DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON -DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON
    -DCMAKE_DISABLE_FIND_PACKAGE_Catch2=ON
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK_DIR}/build COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${WORK_DIR}/build/consumer COMMAND_ERROR_IS_FATAL ANY)
# An installed header must not lean on the source tree.
file(GLOB_RECURSE package_files ${WORK_DIR}/prefix/lib*/cmake/*.cmake)
foreach(file IN LISTS package_files)
  file(STRINGS ${file} leaks REGEX "${SOURCE_DIR}/(src|include|kernels)")
  if(leaks)
    message(FATAL_ERROR "${file}: the installed package must not name the source tree; got ${leaks}")
  endif()
endforeach()
