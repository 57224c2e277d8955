//! Packs of tensors: many small tensors are fused, so that the fixed cost of a call is paid once
//! per pack.

use crate::dtype::DType;

/// Returns the packs of a list of tensors, given as dtype and bytes. Each pack has the positions of
/// its tensors in the list, in order.
///
/// A pack has one dtype. Tensors of a dtype fill it in the order of the list. A tensor that would
/// make it larger than `bytes_per_pack` opens the next pack, so a tensor larger than that has its
/// own pack. With `bytes_per_pack == 0` there is one pack per dtype. Packs are in the order of
/// their first tensors.
///
/// ```
/// use consonance_spec::{DType::{F32, I64}, packing::packs};
/// let tensors = [(F32, 8), (I64, 8), (F32, 8), (F32, 4), (F32, 100)];
/// assert_eq!(packs(&tensors, 16), [vec![0, 2], vec![1], vec![3], vec![4]]);
/// assert_eq!(packs(&tensors, 0), [vec![0, 2, 3, 4], vec![1]]);
/// ```
pub fn packs(tensors: &[(DType, usize)], bytes_per_pack: usize) -> Vec<Vec<usize>> {
    let limit = if bytes_per_pack == 0 { usize::MAX } else { bytes_per_pack };
    let mut packs: Vec<Vec<usize>> = Vec::new();
    // For each dtype, its last pack and the bytes that are free in it.
    let mut open: Vec<Option<(usize, usize)>> = vec![None; DType::ALL.len()];
    for (place, &(dtype, bytes)) in tensors.iter().enumerate() {
        let pack = match open[dtype as usize] {
            Some((pack, free)) if bytes <= free => {
                open[dtype as usize] = Some((pack, free - bytes));
                pack
            }
            _ => {
                packs.push(Vec::new());
                // A tensor larger than the limit leaves its pack full, even for a tensor of zero
                // bytes.
                open[dtype as usize] = limit.checked_sub(bytes).map(|free| (packs.len() - 1, free));
                packs.len() - 1
            }
        };
        packs[pack].push(place);
    }
    packs
}
