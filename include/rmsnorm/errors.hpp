#pragma once

#include <stdexcept>

namespace rmsnorm {

/// A call that the contract refuses. Thrown before anything is written; says where, what must hold
/// and what came.
class ContractError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// Something that the machine or this build lacks (a CUDA device, an implementation); says what to
/// do.
class UnavailableError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A CUDA runtime status other than success, with the call that met it.
class CudaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace rmsnorm
