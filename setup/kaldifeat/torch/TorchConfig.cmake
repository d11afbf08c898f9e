# Stands in for torch's own TorchConfig.cmake, which asks for a CUDA toolkit whenever torch is a
# CUDA build, although kaldifeat needs torch's CPU headers and libraries alone.
execute_process(
  COMMAND "${PYTHON_EXECUTABLE}" -c
    "import os, torch; print(os.path.dirname(torch.__file__), int(torch._C._GLIBCXX_USE_CXX11_ABI), sep=';')"
  OUTPUT_VARIABLE torch_facts
  OUTPUT_STRIP_TRAILING_WHITESPACE
  COMMAND_ERROR_IS_FATAL ANY)
list(GET torch_facts 0 torch_folder)
list(GET torch_facts 1 torch_cxx11_abi)

set(TORCH_INCLUDE_DIRS
  "${torch_folder}/include" "${torch_folder}/include/torch/csrc/api/include")
set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=${torch_cxx11_abi}")
foreach(name torch torch_cpu c10)
  list(APPEND TORCH_LIBRARIES "${torch_folder}/lib/lib${name}.so")
endforeach()
include_directories(${TORCH_INCLUDE_DIRS})
set(TORCH_FOUND TRUE)
