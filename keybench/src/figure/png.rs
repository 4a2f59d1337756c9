//! Writing PNG (W3C, "Portable Network Graphics", third edition): eight bits for red, green and blue, each line as its
//! difference to the one above, which in a chart is nothing but zeros most of the time.

use miniz_oxide::deflate::compress_to_vec_zlib;

/// Eight bits a channel, three channels, and the one way of compressing, filtering and ordering that is not special.
const FORMAT: [u8; 5] = [8, 2, 0, 0, 0];
/// The filter that takes the difference to the line above.
const UP: u8 = 2;
/// Deflate's middle way between speed and size.
const LEVEL: u8 = 6;

/// A picture of `width` times `height` pixels of three bytes each.
pub fn encode(width: u32, height: u32, rgb: &[u8]) -> Vec<u8> {
    let line = width as usize * 3;
    let mut filtered = Vec::with_capacity(rgb.len() + height as usize);
    let mut above = vec![0; line];
    for pixels in rgb.chunks_exact(line.max(1)) {
        filtered.push(UP);
        filtered.extend(pixels.iter().zip(&above).map(|(p, a)| p.wrapping_sub(*a)));
        above.copy_from_slice(pixels);
    }
    let mut header = Vec::with_capacity(13);
    header.extend(width.to_be_bytes());
    header.extend(height.to_be_bytes());
    header.extend(FORMAT);
    let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
    chunk(&mut out, b"IHDR", &header);
    chunk(&mut out, b"IDAT", &compress_to_vec_zlib(&filtered, LEVEL));
    chunk(&mut out, b"IEND", &[]);
    out
}

fn chunk(out: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
    out.extend((data.len() as u32).to_be_bytes());
    let start = out.len();
    out.extend(kind);
    out.extend(data);
    let sum = crc32(&out[start..]);
    out.extend(sum.to_be_bytes());
}

/// CRC-32 of ISO 3309, bit by bit: a few hundred kilobytes need no table.
fn crc32(data: &[u8]) -> u32 {
    !data.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_reader_sees_the_same_picture() {
        let rgb: Vec<u8> = (0..7 * 5 * 3).map(|i| (i * 37 % 251) as u8).collect();
        let decoder = png::Decoder::new(std::io::Cursor::new(encode(7, 5, &rgb)));
        let mut reader = decoder.read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.width, info.height, info.color_type), (7, 5, png::ColorType::Rgb));
        assert_eq!(pixels, rgb);
    }

    #[test]
    fn the_check_sum_is_the_published_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }
}
