// Shared by the tests of scalar types: the types and the names of their formats.
#pragma once

#include <cmath>
#include <tuple>

#include "emulation/format/format.h"
#include "emulation/number/number.h"

namespace lockstep {

template <typename T>
struct NamedType {
  using Type = T;
  const char* name;
  const Format& format() const { return find_format(name); }
  static constexpr uint32_t code_count() { return uint32_t{1} << T::kFormat.storage_bits(); }
};

inline constexpr std::tuple kNamedTypes{
    NamedType<tf32>{"tf32"},
    NamedType<fp16>{"fp16"},
    NamedType<bf16>{"bf16"},
    NamedType<fp8_e4m3>{"fp8_e4m3"},
    NamedType<fp8_e5m2>{"fp8_e5m2"},
    NamedType<fp8_e4m3fnuz>{"fp8_e4m3fnuz"},
    NamedType<fp8_e5m2fnuz>{"fp8_e5m2fnuz"},
    NamedType<fp6_e3m2>{"fp6_e3m2"},
    NamedType<fp6_e2m3>{"fp6_e2m3"},
    NamedType<fp4_e2m1>{"fp4_e2m1"},
};
inline constexpr std::tuple kOtherTypes{
    NamedType<ieee<2, 1>>{"e2m1"},
    NamedType<ieee<2, 13>>{"e2m13"},
    NamedType<ieee<3, 4>>{"e3m4"},
    NamedType<ieee<4, 3>>{"e4m3"},
    NamedType<ieee<6, 9>>{"e6m9"},
    NamedType<ieee<8, 1>>{"e8m1"},
    NamedType<with_rule<fp16, OverflowRule::kSaturate>>{"fp16+saturate"},
    NamedType<with_rule<fp16, SubnormalRule::kFlushOut>>{"fp16+flush_out"},
    NamedType<with_rule<bf16, SubnormalRule::kFlushIn>>{"bf16+flush_in"},
    NamedType<with_rule<fp8_e4m3, OverflowRule::kSaturate>>{"fp8_e4m3+saturate"},
    NamedType<with_rule<fp8_e5m2, SubnormalRule::kFlushOut>>{"fp8_e5m2+flush_out"},
    NamedType<with_rule<fp8_e4m3fnuz, SubnormalRule::kFlushIn>>{"fp8_e4m3fnuz+flush_in"},
    NamedType<with_rule<fp8_e5m2fnuz, OverflowRule::kSaturate>>{"fp8_e5m2fnuz+saturate"},
    NamedType<with_rule<fp6_e3m2, SubnormalRule::kFlushOut>>{"fp6_e3m2+flush_out"},
};
inline constexpr std::tuple kAllTypes = std::tuple_cat(kNamedTypes, kOtherTypes);

template <typename Types, typename Visit>
void for_each_type(const Types& types, const Visit& visit) {
  std::apply([&](const auto&... type) { (visit(type), ...); }, types);
}

// The code of a result. NaN is max_finite if the format has no NaN (number_format.h).
template <typename T>
uint32_t code_of(double x, const Format& format) {
  if (std::isnan(x) && !format.has_nan) x = format.max_finite;
  return static_cast<uint32_t>(encode(x, format));
}

}  // namespace lockstep
