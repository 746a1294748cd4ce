"""Whole batches, byte for byte. A to E are Kafka's format, computed from its specification."""

# One record "test" at 1700000000000.
A_ONE_RECORD = bytes.fromhex(
    "00000000000000000000003c0000000002ce68b28d0000000000000000018bcfe568000000018bcfe56800ffffffffffffffffffffffff"
    "ffff000000011400000001087465737400"
)
# One record "a" at 0.
B_SMALLEST = bytes.fromhex(
    "0000000000000000000000390000000002dbe9c87600000000000000000000000000000000000000000000ffffffffffffffffffffffff"
    "ffff000000010e00000001026100"
)
# Base offset 5, leader epoch 3, producer 7 of epoch 1, sequence 10: "k1" -> "v1" at 1000; no key, "v2", headers h=x and
# n=null at 1005; "k3" -> null at 997.
C_THREE_RECORDS = bytes.fromhex(
    "00000000000000050000005500000003024bf968f700000000000200000000000003e800000000000003ed000000000000000700010000"
    "000a0000000314000000046b31047631001e000a02010476320402680278026e0110000504046b330100"
)
# The end of a transaction at offset 106, producer 7 of epoch 1, coordinator epoch 9, at 2000, leader epoch 3.
D_COMMIT = bytes.fromhex(
    "000000000000006a000000420000000302fb5d18a500300000000000000000000007d000000000000007d000000000000000070001ffff"
    "ffff000000012000000008000000010c00000000000900"
)
D_ABORT = bytes.fromhex(
    "000000000000006a0000004200000003020f63ceed00300000000000000000000007d000000000000007d000000000000000070001ffff"
    "ffff000000012000000008000000000c00000000000900"
)
# Emptied by compaction: offsets 15 to 22, producer 7 of epoch 1, sequence 10, leader epoch 3, max timestamp 1005.
E_EMPTIED = bytes.fromhex(
    "000000000000000f000000310000000302d75121fc000000000007ffffffffffffffff00000000000003ed000000000000000700010000"
    "000a00000000"
)
KAFKA = {
    "one record": A_ONE_RECORD,
    "smallest": B_SMALLEST,
    "three records": C_THREE_RECORDS,
    "commit": D_COMMIT,
    "abort": D_ABORT,
    "emptied": E_EMPTIED,
}
