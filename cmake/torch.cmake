# rmsnorm::torch: the headers and libraries of a libtorch, found through RMSNORM_LIBTORCH (variable or environment: the
# folder that holds share/cmake/Torch) or CMAKE_PREFIX_PATH.
#
# Not Torch's own package: that one enables the CUDA language, asks for a GPU or an architecture list, adds its flags to
# every CUDA target, refuses CMake projects on machines without a CUDA toolkit although only libraries are needed, and
# fails where the toolkit no longer has NVTX 2. None of it serves a project whose kernels know no framework.
# Also installed, for the package of the library.
if(TARGET rmsnorm::torch)
  return()
endif()
if(DEFINED ENV{RMSNORM_LIBTORCH} AND NOT RMSNORM_LIBTORCH)
  set(RMSNORM_LIBTORCH "$ENV{RMSNORM_LIBTORCH}" CACHE PATH "libtorch: the folder that holds share/cmake/Torch")
endif()
find_path(RMSNORM_TORCH_ROOT share/cmake/Torch/TorchConfig.cmake
  HINTS "${RMSNORM_LIBTORCH}" PATHS ${CMAKE_PREFIX_PATH} ${Torch_DIR}/../../..)
if(NOT RMSNORM_TORCH_ROOT)
  message(FATAL_ERROR "libtorch was not found: run scripts/setup.sh, or set RMSNORM_LIBTORCH to the folder of a libtorch "
    "that holds share/cmake/Torch/TorchConfig.cmake; got '${RMSNORM_LIBTORCH}'.")
endif()

file(STRINGS ${RMSNORM_TORCH_ROOT}/share/cmake/Torch/TorchConfig.cmake old_abi REGEX "_GLIBCXX_USE_CXX11_ABI=0")
if(old_abi)
  message(FATAL_ERROR "the libtorch in ${RMSNORM_TORCH_ROOT} was built with the C++ library's old ABI "
    "(_GLIBCXX_USE_CXX11_ABI=0), which g++ no longer uses by default; take a build with the new one.")
endif()

# A build without CUDA kernels leaves libtorch's CUDA half alone, so that it runs where no CUDA library is.
set(torch_names torch_cpu c10)
if(RMSNORM_CUDA)
  set(torch_names torch torch_cpu torch_cuda c10_cuda c10)
endif()
set(torch_library_files "")
foreach(name ${torch_names})
  find_library(RMSNORM_TORCH_${name}_LIBRARY ${name} PATHS ${RMSNORM_TORCH_ROOT}/lib NO_DEFAULT_PATH)
  if(RMSNORM_TORCH_${name}_LIBRARY)
    list(APPEND torch_library_files ${RMSNORM_TORCH_${name}_LIBRARY})
  else()
    message(FATAL_ERROR "lib${name}.so must be in ${RMSNORM_TORCH_ROOT}/lib; it is not: the libtorch there is incomplete.")
  endif()
endforeach()
list(JOIN torch_library_files "," torch_libraries_text)

add_library(rmsnorm::torch INTERFACE IMPORTED)
target_include_directories(rmsnorm::torch SYSTEM INTERFACE
  ${RMSNORM_TORCH_ROOT}/include ${RMSNORM_TORCH_ROOT}/include/torch/csrc/api/include)
# --no-as-needed: libtorch_cuda registers itself when it is loaded, nothing refers to it by symbol.
# -lstdc++ before it: libtorch exports an old std::filesystem of its own, whose remove_all crashes when a program's calls
# end up there; the first library named is the first one searched.
# --allow-shlib-undefined: libtorch finds its own CUDA libraries at run time, wherever they are.
target_link_libraries(rmsnorm::torch INTERFACE
  "-Wl,--push-state,--no-as-needed,-lstdc++,${torch_libraries_text},--pop-state"
  "-Wl,--allow-shlib-undefined" "-Wl,-rpath,${RMSNORM_TORCH_ROOT}/lib")
