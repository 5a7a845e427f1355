// fmt, which Debian offers as a shared library only: the definitions of what its headers declare.
#include <fmt/format-inl.h>

template FMT_API char fmt::detail::decimal_point_impl(locale_ref);
template FMT_API auto fmt::detail::thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto fmt::detail::dragonbox::to_decimal(float) noexcept -> decimal_fp<float>;
template FMT_API auto fmt::detail::dragonbox::to_decimal(double) noexcept -> decimal_fp<double>;
