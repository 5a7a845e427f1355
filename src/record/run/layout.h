// What is called what in a run file? The names that writer and reader share, and what is derived
// from them. docs/run-file.md describes the same layout in words.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::layout {

inline constexpr std::string_view kRunFormat = "lockstep-run";
inline constexpr std::string_view kStateFormat = "lockstep-state";
inline constexpr int64_t kStateFormatVersion = 2;

// Root attributes.
inline constexpr char kFormat[] = "format";
inline constexpr char kFormatVersion[] = "format_version";
inline constexpr char kLockstepVersion[] = "lockstep_version";
inline constexpr char kCommandLine[] = "command_line";
inline constexpr char kCreatedUtc[] = "created_utc";
inline constexpr char kEnvironment[] = "environment";
inline constexpr char kOptions[] = "options";
inline constexpr char kData[] = "data";
inline constexpr char kRunHash[] = "run_hash";
inline constexpr char kVerification[] = "verification";  // of the capture, as it began
inline constexpr char kStepsComplete[] = "steps_complete";

// Objects.
inline constexpr char kGraph[] = "graph";
inline constexpr char kProducts[] = "products";
inline constexpr char kSites[] = "sites";
inline constexpr char kLanes[] = "lanes";
inline constexpr char kPolicy[] = "policy";
inline constexpr char kHistogram[] = "exponent_histogram";
inline constexpr char kHistogramStep[] = "exponent_histogram_step";
inline constexpr char kHistogram50[] = "exponent_histogram_50";
inline constexpr char kHistogram50Steps[] = "exponent_histogram_50_steps";

inline constexpr char kSums[] = "sums";
inline constexpr char kGradientNorms[] = "gradient_norms";

// Lane attributes.
inline constexpr char kIndex[] = "index";
inline constexpr char kEngine[] = "engine";
inline constexpr char kTarget[] = "target";
inline constexpr char kIsReference[] = "is_reference";
inline constexpr char kFallbacks[] = "fallbacks";
inline constexpr char kMemory[] = "memory";
inline constexpr char kDiedAt[] = "died_at", kDiedOf[] = "died_of";
inline constexpr char kScalerLosses[] = "losses";  // of loss_scale
inline constexpr char kPolicyHash[] = "policy_hash";

// Steps summed in one row of exponent_histogram_50, and the first steps that are all kept in full.
inline constexpr int64_t kHistogramBlock = 50;
inline constexpr int64_t kHistogramFirstSteps = 20;

// A name as one component of an HDF5 path: '%' -> %25, '/' -> %2F, "." -> %2E. And back.
std::string escape(std::string_view name);
std::string unescape(std::string_view component);

// FNV-1a over 64 bits (Fowler, Noll, Vo), as 16 hexadecimal digits: identity, not security.
std::string text_hash(std::string_view text);
std::string hex(uint64_t value);

}  // namespace lockstep::layout
