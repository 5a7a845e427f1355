// The names in a run file that its writer and reader share: attributes, and objects that are not in
// the table of recorded quantities (quantities.h). docs/run-file.md explains them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::run_names {

inline constexpr std::string_view kRunFormat = "lockstep-run";
inline constexpr std::string_view kStateFormat = "lockstep-state";
inline constexpr int64_t kStateFormatVersion = 4;
// The first version of run files whose readers compare checksums of all that they read.
inline constexpr int64_t kSealedVersion = 4;

// Root attributes.
inline constexpr char kFormat[] = "format";
inline constexpr char kFormatVersion[] = "format_version";
inline constexpr char kLockstepVersion[] = "lockstep_version";
inline constexpr char kCommandLine[] = "command_line";
inline constexpr char kCreatedUtc[] = "created_utc";
inline constexpr char kEnvironment[] = "environment";
inline constexpr char kOptions[] = "options";
inline constexpr char kData[] = "data";
inline constexpr char kBatchesHash[] = "batches_hash";  // of a capture
inline constexpr char kRunHash[] = "run_hash";
inline constexpr char kRunId[] = "run_id";  // of this file's run alone, also among equal runs
inline constexpr char kVerification[] = "verification";  // of the capture, when the run began
inline constexpr char kDescriptionChecksum[] = "description_checksum";
inline constexpr char kStepsComplete[] = "steps_complete";
inline constexpr char kStepsChecksum[] = "steps_checksum";

// Objects.
inline constexpr char kGraph[] = "graph";
inline constexpr char kProducts[] = "products";
inline constexpr char kLines[] = "lines";      // of a capture's script
inline constexpr char kWatched[] = "watched";  // of a lane: the group of its numbers
inline constexpr char kSites[] = "sites";
inline constexpr char kLanes[] = "lanes";
inline constexpr char kSeeds[] = "seeds";  // further runs, each in a group named by its seed
inline constexpr char kPolicy[] = "policy";
inline constexpr char kLossScale[] = "loss_scale";  // the group of the scalers
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
inline constexpr char kWarnings[] = "warnings";  // one per line
// Lane objects.
inline constexpr char kSiteFormats[] = "site_formats";
inline constexpr char kDeviceSums[] = "device_sums";

// The group of a run other than the first: "seeds/8".
std::string seed_group(uint64_t seed);

// A hash as files store it: 16 hexadecimal digits.
std::string hex(uint64_t hash);

}  // namespace lockstep::run_names
