//! That the check accepts what may be and finds what may not.
