// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Plots as PNG. The development root has no fonts, so text is an 8x8 bitmap font.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use font8x8::legacy::BASIC_LEGACY;
use plotters::style::text_anchor::{HPos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendTextStyle, DrawingBackend, DrawingErrorKind, FontTransform,
};

/// Pixels of a glyph.
const GLYPH: i32 = 8;

/// A canvas that becomes a file when it is presented.
pub struct Canvas {
    path: PathBuf,
    size: (u32, u32),
    rgb: Vec<u8>,
}

impl Canvas {
    /// A black canvas of `size` pixels for the file `path`.
    pub fn new(path: PathBuf, size: (u32, u32)) -> Self {
        let bytes = 3 * size.0 as usize * size.1 as usize;
        Self {
            path,
            size,
            rgb: vec![0; bytes],
        }
    }
}

fn drawing(error: impl Into<io::Error>) -> DrawingErrorKind<io::Error> {
    DrawingErrorKind::DrawingError(error.into())
}

/// Whole pixels per pixel of the font.
fn scale<S: BackendTextStyle>(style: &S) -> i32 {
    ((style.size() / f64::from(GLYPH)).round() as i32).max(1)
}

fn extent<S: BackendTextStyle>(text: &str, style: &S) -> (i32, i32) {
    let unit = GLYPH * scale(style);
    (unit * text.chars().count() as i32, unit)
}

impl DrawingBackend for Canvas {
    type ErrorType = io::Error;

    fn get_size(&self) -> (u32, u32) {
        self.size
    }

    fn ensure_prepared(&mut self) -> Result<(), DrawingErrorKind<io::Error>> {
        Ok(())
    }

    fn present(&mut self) -> Result<(), DrawingErrorKind<io::Error>> {
        let file = File::create(&self.path).map_err(drawing)?;
        let mut encoder = png::Encoder::new(io::BufWriter::new(file), self.size.0, self.size.1);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header().map_err(drawing)?;
        writer.write_image_data(&self.rgb).map_err(drawing)?;
        writer.finish().map_err(drawing)
    }

    fn draw_pixel(
        &mut self,
        (x, y): BackendCoord,
        color: BackendColor,
    ) -> Result<(), DrawingErrorKind<io::Error>> {
        let (width, height) = self.size;
        let inside =
            u32::try_from(x).is_ok_and(|x| x < width) && u32::try_from(y).is_ok_and(|y| y < height);
        if !inside {
            return Ok(());
        }
        let at = 3 * (y as usize * width as usize + x as usize);
        let (red, green, blue) = color.rgb;
        for (old, new) in self.rgb[at..at + 3].iter_mut().zip([red, green, blue]) {
            let mixed = f64::from(*old) * (1.0 - color.alpha) + f64::from(new) * color.alpha;
            *old = mixed.round() as u8;
        }
        Ok(())
    }

    fn draw_text<S: BackendTextStyle>(
        &mut self,
        text: &str,
        style: &S,
        (x, y): BackendCoord,
    ) -> Result<(), DrawingErrorKind<io::Error>> {
        let (width, height) = extent(text, style);
        let anchor = style.anchor();
        let left = match anchor.h_pos {
            HPos::Left => 0,
            HPos::Center => -width / 2,
            HPos::Right => -width,
        };
        let top = match anchor.v_pos {
            VPos::Top => 0,
            VPos::Center => -height / 2,
            VPos::Bottom => -height,
        };
        let scale = scale(style);
        let transform = style.transform();
        for (i, letter) in text.chars().enumerate() {
            let glyph = BASIC_LEGACY
                .get(letter as usize)
                .unwrap_or(&BASIC_LEGACY['?' as usize]);
            for down in 0..GLYPH * scale {
                for right in 0..GLYPH * scale {
                    if (glyph[(down / scale) as usize] >> (right / scale)) & 1 == 1 {
                        let across = left + i as i32 * GLYPH * scale + right;
                        let (dx, dy) = transform.transform(across, top + down);
                        self.draw_pixel((x + dx, y + dy), style.color())?;
                    }
                }
            }
        }
        Ok(())
    }

    fn estimate_text_size<S: BackendTextStyle>(
        &self,
        text: &str,
        style: &S,
    ) -> Result<(u32, u32), DrawingErrorKind<io::Error>> {
        let (width, height) = extent(text, style);
        let (width, height) = (width as u32, height as u32);
        Ok(match style.transform() {
            FontTransform::None | FontTransform::Rotate180 => (width, height),
            _ => (height, width),
        })
    }
}
