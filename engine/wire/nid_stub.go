package wire

// NID is a 64-bit LNet network identifier: type 8 bits, number 16 bits, address 32 bits (spec lnet 1.1).
type NID uint64
