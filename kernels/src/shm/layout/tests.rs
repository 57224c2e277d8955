use super::*;

#[test]
fn a_changed_code_changes_the_hash() {
    let with = |table: usize, codes: &[Code]| {
        let mut tables = CODES;
        tables[table] = codes;
        hash(&tables)
    };
    for (table, codes) in CODES.into_iter().enumerate() {
        assert_eq!(with(table, codes), HASH);
        for index in 0..codes.len() {
            let mut renumbered = codes.to_vec();
            renumbered[index].0 ^= 1;
            let mut renamed = codes.to_vec();
            renamed[index].1 = "another";
            for codes in [renumbered, renamed] {
                assert_ne!(with(table, &codes), HASH, "{:?}", codes[index]);
            }
        }
        assert_ne!(with(table, &codes[..codes.len() - 1]), HASH);
    }
}

#[test]
fn every_part_has_its_place_and_no_page_is_left_but_before_the_heaps() {
    for (ranks, staging) in
        [1, 2, 3, 5, 8, 20].into_iter().flat_map(|ranks| [(ranks, STAGING_UNIT), (ranks, 32 * PAGE)])
    {
        let layout = Layout::new(Shape::new(ranks, staging).unwrap());
        let areas = areas(ranks);
        let mut pages = vec![0..LINES, layout.call_logs(), layout.lives..layout.splits];
        pages.extend(areas.iter().map(|&(area, _)| layout.pages(area)));
        pages.extend(areas.iter().flat_map(|&(area, count)| (0..count).map(move |rank| layout.staging(area, rank))));
        for group in groups() {
            pages.extend((0..ranks).map(|to| layout.ring_ends(group, to)));
            let rings = (0..ranks).flat_map(|to| (0..ranks).map(move |from| (from, to)));
            pages.extend(rings.map(|(from, to)| layout.ring(group, from, to)));
        }
        pages.push(layout.heaps());
        pages.sort_by_key(|part| part.start);
        for pair in pages.windows(2) {
            let unit = if pair[1] == layout.heaps() { HUGE_PAGE } else { PAGE };
            assert_eq!(pair[0].end.next_multiple_of(unit), pair[1].start, "{ranks} ranks, {staging} bytes");
        }
        assert!((0..ranks).all(|rank| layout.heap(rank).start.is_multiple_of(HUGE_PAGE)));
        assert!(pages.iter().all(|part| part.start % PAGE == 0));
        assert_eq!((pages[0].start, pages.last().unwrap().end), (0, layout.size));
    }
}

#[test]
fn no_two_things_overlap() {
    let layout = Layout::new(Shape::new(5, STAGING_UNIT).unwrap());
    let part = |start: usize, bytes: usize| start..start + bytes;
    let mut parts = vec![part(0, HEADER_BYTES)];
    for (area, count) in areas(5) {
        parts.push(part(layout.head(area), size_of::<Head>()));
        parts.push(part(layout.records(area), count * size_of::<RankRecord>()));
        parts.extend((0..count).map(|rank| layout.staging(area, rank)));
        assert!(layout.records(area) + count * size_of::<RankRecord>() <= layout.pages(area).end);
    }
    parts.extend((0..5).map(|rank| part(layout.call_log(rank), size_of::<CallLog>())));
    parts.sort_by_key(|part| part.start);
    for pair in parts.windows(2) {
        assert!(pair[0].end <= pair[1].start, "{pair:?}");
    }
    assert!(parts.last().unwrap().end <= layout.size);
    // These parts are read before anything more is reserved.
    for area in [Area::Root, Area::Split(0), Area::Split(SPLITS - 1)] {
        assert!(layout.head(area) + size_of::<Head>() <= layout.reserved().end);
    }
    assert!(layout.pages(Area::Root).end <= layout.reserved().end);
    assert!(layout.call_log(4) + size_of::<CallLog>() <= layout.reserved().end);
}

#[test]
fn shapes_without_a_place_are_refused() {
    assert!(Shape::new(1024, Shape::STAGING_BYTES).is_ok());
    let refused = |ranks, bytes| match Shape::new(ranks, bytes).unwrap_err() {
        SegmentError::Shape { what, expected, found } => (what, expected, found.parse::<usize>().unwrap()),
        error => panic!("{error}"),
    };
    for ranks in [0, 1025] {
        assert_eq!(refused(ranks, 1 << 20), ("number of ranks", "1 to 1024".to_owned(), ranks));
    }
    for bytes in [0, 1, STAGING_UNIT - 1, STAGING_UNIT + PAGE / 4] {
        let expected = "a multiple of 2048, above 0".to_owned();
        assert_eq!(refused(2, bytes), ("bytes of staging", expected, bytes));
    }
    let most = usize::MAX / STAGING_UNIT * STAGING_UNIT;
    for bytes in [most, most / 64 / STAGING_UNIT * STAGING_UNIT] {
        let (what, expected, found) = refused(2, bytes);
        assert_eq!((what, found), ("bytes of staging", bytes));
        assert!(expected.starts_with("fewer"), "{expected}");
    }
}

#[test]
fn invalid_areas_and_ranks_have_no_place() {
    let layout = Layout::new(Shape::new(3, STAGING_UNIT).unwrap());
    let no_place = |find: &dyn Fn()| assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(find)).is_err());
    let pair = |group, lower, higher| Area::Pair { group, lower, higher };
    let pairs = [pair(GROUPS, 0, 1), pair(0, 1, 1), pair(0, 2, 1), pair(0, 0, 3), pair(0, 3, 4)];
    for area in [&[Area::Split(SPLITS)], &pairs[..]].concat() {
        no_place(&|| _ = layout.head(area));
        no_place(&|| _ = layout.records(area));
        no_place(&|| _ = layout.pages(area));
        no_place(&|| _ = layout.staging(area, 0));
    }
    for area in [Area::Split(SPLITS), pair(0, 0, 1)] {
        no_place(&|| _ = layout.ring_ends(area, 0));
        no_place(&|| _ = layout.ring(area, 0, 1));
    }
    no_place(&|| _ = layout.ring_ends(Area::Root, 3));
    no_place(&|| _ = layout.ring(Area::Root, 3, 0));
    no_place(&|| _ = layout.staging(Area::Root, 3));
    no_place(&|| _ = layout.staging(pair(0, 0, 1), 2));
    no_place(&|| _ = layout.call_log(3));
}
