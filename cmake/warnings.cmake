# Warnings for our own code, as an interface that targets link privately.
add_library(rmsnorm_warnings INTERFACE)
target_compile_options(rmsnorm_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wno-missing-field-initializers>)
