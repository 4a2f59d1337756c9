//! Planted bugs: that the exploration finds what it is there to find, shown on models of a few lines.

