#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| kingtide_fuzz::capi(data));
