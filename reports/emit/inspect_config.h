// The layers of a policy as a configuration of nvidia-dlfw-inspect, the debug tool of Transformer
// Engine: what its recipe leaves unrounded. The recipe itself is not in the file.
// Never run by us: written from its source.
// Source: nvidia-dlfw-inspect, nvdlfw_inspect/config_manager.py and api.py; Transformer
// Engine 2.20, transformer_engine/debug/features/disable_quantization_layer.py and
// disable_quantization_gemm.py.
#pragma once

#include <string>
#include <vector>

#include "reports/emit/emit_facts.h"

namespace lockstep {

std::string inspect_config(const EmitFacts& facts, const std::string& module,
                           std::vector<std::string>& unsaid);

}  // namespace lockstep
