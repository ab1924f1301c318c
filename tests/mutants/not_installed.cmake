# -DNM= -DARCHIVES=the installed ones -DMUTANTS=the mutants' archive: no symbol of the former has a fault.
function(count_faults archive result)
  execute_process(COMMAND ${NM} -C ${archive} OUTPUT_VARIABLE symbols ERROR_QUIET COMMAND_ERROR_IS_FATAL ANY)
  # An instantiation reads ...(rmsnorm::kernels::Fault)12...; the product's is number 0.
  string(REGEX MATCHALL "kernels::Fault\\)[1-9][0-9]*|mutant" found "${symbols}")
  list(LENGTH found count)
  set(${result} ${count} PARENT_SCOPE)
endfunction()

count_faults(${MUTANTS} known)
if(known LESS 40)
  message(FATAL_ERROR "${MUTANTS}: must show its faults in its symbols, or this test proves nothing; ${known} found")
endif()
foreach(archive IN LISTS ARCHIVES)
  count_faults(${archive} count)
  if(NOT count EQUAL 0)
    message(FATAL_ERROR "${archive}: must hold no mutant; ${count} symbols of mutants found")
  endif()
endforeach()
