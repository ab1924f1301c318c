cmake_policy(VERSION 3.25)
# Who may include whom (-DSOURCE_DIR= -DCXX= -DHEADERS=the public headers that are compiled alone).
set(problems "")

# forbid(WHERE folder EXCEPT regex... MATCHING regex BECAUSE text): no #include line under the folder matches.
function(forbid)
  cmake_parse_arguments(arg "" "WHERE;MATCHING;BECAUSE" "EXCEPT" ${ARGN})
  file(GLOB_RECURSE files RELATIVE ${SOURCE_DIR}
    ${SOURCE_DIR}/${arg_WHERE}/*.cpp ${SOURCE_DIR}/${arg_WHERE}/*.hpp ${SOURCE_DIR}/${arg_WHERE}/*.h
    ${SOURCE_DIR}/${arg_WHERE}/*.cu ${SOURCE_DIR}/${arg_WHERE}/*.cuh)
  if(NOT files)
    message(FATAL_ERROR "${arg_WHERE}: there must be sources to look at; found none")
  endif()
  foreach(file IN LISTS files)
    foreach(exception IN LISTS arg_EXCEPT)
      if(file MATCHES "${exception}")
        set(file "")
        break()
      endif()
    endforeach()
    if(file STREQUAL "")
      continue()
    endif()
    file(STRINGS ${SOURCE_DIR}/${file} lines REGEX "^[ \t]*#[ \t]*include")
    foreach(line IN LISTS lines)
      if(line MATCHES "${arg_MATCHING}")
        string(APPEND problems "${file}: ${arg_BECAUSE}; got ${line}\n")
      endif()
    endforeach()
  endforeach()
  set(problems "${problems}" PARENT_SCOPE)
endfunction()

set(torch "[<\"](torch|ATen|c10|caffe2)/")
set(cuda "[<\"](cuda|cub|thrust|cooperative_groups|nvtx)[^\"]*\\.?h?(pp)?[>\"]|ATen/cuda|c10/cuda")
forbid(WHERE kernels MATCHING ${torch} BECAUSE "kernels know no framework")
forbid(WHERE kernels MATCHING "\"([^kr]|k[^e]|rmsnorm/[^i])" BECAUSE "kernels include kernels/ and the seam alone")
forbid(WHERE src/core MATCHING ${torch} BECAUSE "core is free of libtorch")
forbid(WHERE src/core MATCHING "\"(operator|reference|check|train|bench|exercise|cli|kernels)/"
  BECAUSE "core knows no other layer")
forbid(WHERE src/operator MATCHING "\"(reference|check|train|bench|exercise|cli)/"
  BECAUSE "the operator knows core and kernels alone")
forbid(WHERE src/check MATCHING "\"(train|bench|exercise|cli)/" BECAUSE "checks do not know their callers")
forbid(WHERE src/reference MATCHING "\"(check|train|bench|exercise|cli)/" BECAUSE "the oracle does not know its callers")
forbid(WHERE include MATCHING "yaml-cpp|fmt/|nlohmann|CLI/" BECAUSE "the library is free of the program's dependencies")
forbid(WHERE src MATCHING ${cuda} EXCEPT "^src/operator/cuda_device\\.cpp$" "^src/bench/cuda_timer\\.cpp$"
  BECAUSE "CUDA headers belong in kernels/cuda, src/operator/cuda_device.cpp and src/bench/cuda_timer.cpp")
forbid(WHERE include MATCHING ${cuda} BECAUSE "public headers need no CUDA")
forbid(WHERE kernels/cpu MATCHING ${cuda} BECAUSE "CPU kernels need no CUDA")
forbid(WHERE kernels/common MATCHING ${cuda} BECAUSE "what both share needs no CUDA")

# Every public header is on the list of those compiled alone.
file(GLOB public RELATIVE ${SOURCE_DIR}/include ${SOURCE_DIR}/include/rmsnorm/*)
foreach(header IN LISTS public)
  if(NOT header IN_LIST HEADERS)
    string(APPEND problems "include/${header}: must be in public_headers of tests/CMakeLists.txt; it is not\n")
  endif()
endforeach()

# The seam is C: any language's kernels can fill it.
execute_process(COMMAND ${CXX} -x c -std=c99 -pedantic-errors -Wall -Wextra -Werror -fsyntax-only
    ${SOURCE_DIR}/include/rmsnorm/implementation.h RESULT_VARIABLE failed ERROR_VARIABLE errors)
if(failed)
  string(APPEND problems "include/rmsnorm/implementation.h: must compile as C99; got ${errors}\n")
endif()

if(problems)
  message(FATAL_ERROR "${problems}")
endif()
