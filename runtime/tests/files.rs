//! Columns in files: each format is read back equal, and an invalid file is an error with the
//! reason.

mod fields;

use consonance::{
    DType, Dataset, Error, Result, Tensor,
    dataset::{self, Column, CsvOptions},
    f16,
};
use fields::{found, refusal};
use std::{env, fmt::Debug, fs, io, path::PathBuf, process};

/// A separate folder for a test, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = env::temp_dir().join(format!("consonance-files-{}-{name}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Reads all rows.
fn rows(column: &Column) -> Result<Tensor> {
    let count = column.count().max(1);
    dataset::from_tensor_slices(column.clone())?.batch(count).iterate(0)?.next().expect("a column with rows")
}

/// Checks that reading rows in random order gives the same as reading all at once.
#[track_caller]
fn check_rows_at_random(column: &Column) {
    let all = rows(column).unwrap();
    let places = Tensor::from((0..column.count() as u64).collect::<Vec<_>>());
    let table = dataset::from_tensor_slices((column.clone(), places)).unwrap().shuffle(3);
    for element in table.iterate(0).unwrap() {
        let (row, place) = element.unwrap();
        let place = place.item::<u64>().unwrap() as usize;
        let expected = all.rows(place..place + 1).unwrap().reshape(row.shape()).unwrap();
        assert_eq!(row, expected, "row {place}");
    }
}

/// Checks that the error names the file, and that all of `words` are in what was expected or in
/// what was found. Returns both.
#[track_caller]
fn check_refused<R: Debug>(result: Result<R>, words: &[&str]) -> (String, String) {
    match result.expect_err("a file that is not as it should be") {
        Error::InvalidCall { argument, expected, found, .. } => {
            assert!(argument.contains("consonance-files-"), "{argument}");
            for word in words {
                assert!(expected.contains(word) || found.contains(word), "{word:?} in {expected:?}, {found:?}");
            }
            (expected, found)
        }
        error => panic!("{error:?}"),
    }
}

fn npy(version: u8, header: &str, data: &[u8]) -> Vec<u8> {
    let length = header.len() as u32;
    let length = if version == 1 { (length as u16).to_le_bytes().to_vec() } else { length.to_le_bytes().to_vec() };
    [b"\x93NUMPY", &[version, 0][..], &length, header.as_bytes(), data].concat()
}

/// Writes a file as NumPy does: with padding, so that the offset of the elements is a multiple of
/// 64.
fn npy_of(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let dict = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    npy(1, &format!("{dict:<117}\n"), data)
}

#[test]
fn npy_of_each_type() {
    let folder = Folder::new("npy-types");
    let bytes: Vec<u8> = (0..48u8).map(|byte| byte.wrapping_mul(37)).collect();
    let types = [
        ("i1", DType::I8),
        ("i2", DType::I16),
        ("i4", DType::I32),
        ("i8", DType::I64),
        ("u1", DType::U8),
        ("u2", DType::U16),
        ("u4", DType::U32),
        ("u8", DType::U64),
        ("f2", DType::F16),
        ("f4", DType::F32),
        ("f8", DType::F64),
    ];
    for (name, dtype) in types {
        let shape = [3, 16 / dtype.size()];
        let swapped: Vec<u8> = bytes.chunks(dtype.size()).flat_map(|element| element.iter().rev()).copied().collect();
        let mark = if dtype.size() == 1 { "|" } else { "<" };
        let little =
            folder.write("little", npy_of(&format!("{mark}{name}"), &format!("({}, {})", shape[0], shape[1]), &bytes));
        let big = folder.write("big", npy_of(&format!(">{name}"), &format!("({}, {})", shape[0], shape[1]), &swapped));
        let column = Column::npy(&little).unwrap();
        assert_eq!((column.dtype(), column.count(), column.row_shape()), (dtype, 3, &shape[1..]));
        let little = rows(&column).unwrap();
        assert_eq!(format!("{little:?}"), format!("{:?}", rows(&Column::npy(&big).unwrap()).unwrap()));
        if dtype == DType::I16 {
            let expected: Vec<i16> = bytes.chunks(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]])).collect();
            assert_eq!(little, Tensor::new(shape, &expected).unwrap());
        } else if dtype == DType::F64 {
            let expected: Vec<f64> = bytes.chunks(8).map(|e| f64::from_le_bytes(e.try_into().unwrap())).collect();
            assert_eq!(little, Tensor::new(shape, &expected).unwrap());
        }
    }
    let truths = folder.write("truths", npy_of("|b1", "(3,)", &[0, 1, 0xff]));
    assert_eq!(rows(&Column::npy(truths).unwrap()).unwrap(), Tensor::from([false, true, true]));
    let halves = folder.write("halves", npy_of("<f2", "(1, 1)", &[0x00, 0x3e]));
    assert_eq!(rows(&Column::npy(halves).unwrap()).unwrap(), Tensor::from([[f16::from_f32(1.5)]]));
}

#[test]
fn npy_of_each_version_and_spelling() {
    let folder = Folder::new("npy-versions");
    let headers = [
        "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 1), }",
        "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 1), }         \n",
        "{\"shape\":(2,1,),\"fortran_order\":False,\"descr\":\"<i2\"}\n",
        " { 'fortran_order' : False , 'descr' : '<i2' , 'shape' : ( 2 , 1 ) } \n",
    ];
    for version in 1..=3 {
        for header in headers {
            let path = folder.write("a.npy", npy(version, header, &[1, 0, 2, 1]));
            assert_eq!(rows(&Column::npy(path).unwrap()).unwrap(), Tensor::from([[1i16], [258]]), "{version} {header}");
        }
    }
    let line = npy(1, "{'descr': '|u1', 'fortran_order': True, 'shape': (2,)}", &[8, 9]);
    let column = Column::npy(folder.write("line.npy", line)).unwrap();
    assert_eq!(rows(&column).unwrap(), Tensor::from([8u8, 9]), "one dimension has one order");
    let nothing = Column::npy(folder.write("nothing.npy", npy_of("<f4", "(0, 7)", &[]))).unwrap();
    assert_eq!((nothing.count(), nothing.row_shape()), (0, &[7][..]));
}

#[test]
fn invalid_npy_is_refused() {
    let folder = Folder::new("npy-wrong");
    let header = |descr: &str, order: &str, shape: &str| {
        format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n")
    };
    let cases: [(&str, &[&str]); 26] = [
        (&header("'<c8'", "False", "(4,)"), &["f4", "<c8"]),
        (&header("'|O'", "False", "(4,)"), &["f4", "|O"]),
        (&header("'<U4'", "False", "(4,)"), &["f4", "<U4"]),
        (&header("'=f4'", "False", "(4,)"), &["f4", "=f4"]),
        (&header("'|f4'", "False", "(4,)"), &["f4", "|f4"]),
        (&header("''", "False", "(4,)"), &["f4"]),
        (&header("'é4'", "False", "(4,)"), &["f4"]),
        (&header("[('a', '<f4')]", "False", "(4,)"), &["f4", "('a', '<f4')"]),
        (&header("('<f4', (2,))", "False", "(4,)"), &["f4"]),
        (&header("'<f4'", "True", "(2, 2)"), &["C order", "True"]),
        (&header("'<f4'", "Maybe", "(4,)"), &["True or False", "Maybe"]),
        (&header("'<f4'", "False", "()"), &["at least one dimension", "a scalar"]),
        (&header("'<f4'", "False", "(5,)"), &["148 bytes", "144 bytes"]),
        (&header("'<f4'", "False", "(3,)"), &["140 bytes", "144 bytes"]),
        (&header("'<f4'", "False", "(4294967296, 4294967296, 4)"), &["no more bytes than there are numbers"]),
        (&header("'<f4'", "False", "(4294967296, 4294967296, 0)"), &["no more bytes than there are numbers"]),
        (&header("'<f4'", "False", "(0, 4294967296, 4294967296)"), &["128 bytes"]),
        (&header("'<f4'", "False", "(99999999999999999999,)"), &["a tuple of sizes"]),
        (&header("'<f4'", "False", "(-4,)"), &["a tuple of sizes"]),
        (&header("'<f4'", "False", "4"), &["a tuple of sizes"]),
        (&header("'<f4'", "False", "(4"), &["a tuple of sizes"]),
        ("{'descr': '<f4', 'shape': (4,)}\n", &["each once"]),
        ("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (4,)}\n", &["each once"]),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (4,)} 1\n", &["nothing after the dict"]),
        ("{'descr': '<f4, \n", &["'descr' one of"]),
        ("", &["a dict of Python"]),
    ];
    for (header, words) in cases {
        let data = if words.contains(&"a scalar") { &[0; 4][..] } else { &[0; 16] };
        let header = format!("{header:<118}");
        check_refused(Column::npy(folder.write("a.npy", npy(1, &header, data))), words);
    }
    let whole = npy_of("<f4", "(4,)", &[0; 16]);
    for bytes in 0..whole.len() {
        check_refused(Column::npy(folder.write("short.npy", &whole[..bytes])), &[]);
    }
    for (at, byte, words) in [
        (0, 0x92, &[r"\x93NUMPY", r"\x92NUMPY"][..]),
        (6, 4, &["format 1.0, 2.0 or 3.0", "format 4.0"]),
        (7, 1, &["format 1.0, 2.0 or 3.0", "format 1.1"]),
        (9, 1, &["the header in bytes 10..384", "144 bytes"]),
    ] {
        let mut damaged = whole.clone();
        damaged[at] = byte;
        check_refused(Column::npy(folder.write("damaged.npy", damaged)), words);
    }
    let mut long = npy(2, " ", &[]);
    long[8..12].fill(0xff);
    check_refused(Column::npy(folder.write("long.npy", long)), &["a header of at most", "4294967295"]);
}

#[test]
fn an_absent_file_keeps_the_system_s_words() {
    let nothing = env::temp_dir().join("consonance-files-nothing");
    for column in [Column::npy(&nothing), Column::idx(&nothing), Column::csv(&nothing, &CsvOptions::new())] {
        let error = column.unwrap_err();
        let Error::System { what, source } = &error else { panic!("{error}") };
        assert_eq!(source.kind(), io::ErrorKind::NotFound);
        assert!(what.ends_with(&nothing.display().to_string()), "{error}");
    }
    let folder = Folder::new("folder");
    let error = Column::npy(&folder.0).unwrap_err();
    let is_no_file = |source: &io::Error| source.kind() == io::ErrorKind::InvalidInput;
    assert!(matches!(&error, Error::System { source, .. } if is_no_file(source)), "{error}");
}

#[test]
fn a_shortened_file_is_an_error() {
    let folder = Folder::new("shorter");
    let path = folder.write("a.npy", npy_of("<u4", "(3,)", &[0; 12]));
    let column = Column::npy(&path).unwrap();
    rows(&column).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(139).unwrap();
    let error = rows(&column).unwrap_err();
    let Error::System { what, source } = &error else { panic!("{error}") };
    assert_eq!(source.kind(), io::ErrorKind::UnexpectedEof);
    assert!(what.starts_with("Column::npy: read "), "{error}");
}

#[test]
fn idx_of_each_type() {
    let folder = Folder::new("idx");
    let idx = |code: u8, data: &[u8]| [&[0, 0, code, 2, 0, 0, 0, 2, 0, 0, 0, 1], data].concat();
    let read = |bytes: Vec<u8>| rows(&Column::idx(folder.write("a", bytes)).unwrap()).unwrap();
    assert_eq!(read(idx(0x08, &[1, 254])), Tensor::from([[1u8], [254]]));
    assert_eq!(read(idx(0x09, &[1, 254])), Tensor::from([[1i8], [-2]]));
    assert_eq!(read(idx(0x0B, &[1, 2, 255, 0])), Tensor::from([[258i16], [-256]]));
    assert_eq!(read(idx(0x0C, &[0, 0, 1, 2, 255, 255, 255, 0])), Tensor::from([[258i32], [-256]]));
    let floats = [1.5f32.to_be_bytes(), (-0.25f32).to_be_bytes()].concat();
    assert_eq!(read(idx(0x0D, &floats)), Tensor::from([[1.5f32], [-0.25]]));
    let doubles = [1.5f64.to_be_bytes(), (-0.25f64).to_be_bytes()].concat();
    assert_eq!(read(idx(0x0E, &doubles)), Tensor::from([[1.5f64], [-0.25]]));
    assert_eq!(read(vec![0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]), Tensor::from([7u8, 2, 1]));
    let images: Vec<u8> = (0..100 * 12).map(|byte| byte as u8).collect();
    let images = [&[0, 0, 8, 3, 0, 0, 0, 100, 0, 0, 0, 3, 0, 0, 0, 4][..], &images].concat();
    let images = Column::idx(folder.write("images", images)).unwrap();
    assert_eq!(format!("{images:?}"), "Column(100 rows of u8[3, 4])");
    check_rows_at_random(&images);
}

#[test]
fn invalid_idx_is_refused() {
    let folder = Folder::new("idx-wrong");
    let cases: [(&[u8], &[&str]); 9] = [
        (&[], &["a header in bytes 0..4", "0 bytes"]),
        (&[0x1f, 0x8b, 8, 0], &["two bytes of zero", r"\x1f\x8b"]),
        (&[0, 0, 10, 1, 0, 0, 0, 0], &["0x08 (u8)", "0x0A"]),
        (&[0, 0, 8, 0, 1], &["at least one dimension"]),
        (&[0, 0, 8, 2, 0, 0, 0, 1], &["the size of each dimension", "8 bytes"]),
        (&[0, 0, 8, 1, 0, 0, 0, 2, 1], &["10 bytes", "9 bytes"]),
        (&[0, 0, 8, 1, 0, 0, 0, 2, 1, 2, 3], &["10 bytes", "11 bytes"]),
        (&[0, 0, 8, 2, 255, 255, 255, 255, 0, 0, 0, 0], &["rows of at least one element"]),
        (&[&[0, 0, 14, 255][..], &[255; 4 * 255]].concat(), &["no more bytes than there are numbers"]),
    ];
    for (bytes, words) in cases {
        check_refused(Column::idx(folder.write("a", bytes)), words);
    }
}

#[test]
fn csv_as_the_options_say() {
    let folder = Folder::new("csv");
    let text = "a, b ,\"c \"\"d\"\"\"\n1,-2.5,1e3\n\n\"4\", 5 ,nan\n";
    let path = folder.write("a.csv", text);
    let read = |options: CsvOptions| rows(&Column::csv(&path, &options)?);
    let all = read(CsvOptions::new()).unwrap();
    assert_eq!(all.to_string(), "f32[2, 3] [[1, -2.5, 1000], [4, 5, NaN]]");
    let doubles = read(CsvOptions::new().dtype(DType::F64).columns(["b", "a"])).unwrap();
    assert_eq!(doubles, Tensor::from([[-2.5f64, 1.0], [5.0, 4.0]]));
    assert_eq!(read(CsvOptions::new().column(0)).unwrap(), Tensor::from([1.0f32, 4.0]));
    assert_eq!(read(CsvOptions::new().columns([0])).unwrap(), Tensor::from([[1.0f32], [4.0]]));
    assert_eq!(read(CsvOptions::new().columns(0..1).dtype(DType::U8)).unwrap(), Tensor::from([[1u8], [4]]));
    assert_eq!(
        read(CsvOptions::new().column("a").dtype(DType::F16)).unwrap(),
        Tensor::from([f16::from_f32(1.0), f16::from_f32(4.0)])
    );
    let plain = folder.write("plain.csv", "true,1\r\nFALSE,0");
    let truths = Column::csv(plain, &CsvOptions::new().header(false).dtype(DType::Bool)).unwrap();
    assert_eq!(rows(&truths).unwrap(), Tensor::from([[true, true], [false, false]]));
    let only_names = Column::csv(folder.write("names.csv", "a,b\n"), &CsvOptions::new()).unwrap();
    assert_eq!((only_names.count(), only_names.row_shape()), (0, &[2][..]));
    let marked = Column::csv(folder.write("marked.csv", "\u{feff}a\n7\n"), &CsvOptions::new().column("a")).unwrap();
    assert_eq!(rows(&marked).unwrap(), Tensor::from([7.0f32]));
}

#[test]
fn csv_is_read_at_random() {
    let folder = Folder::new("csv-random");
    for end in ["\n", "\r\n"] {
        let lines: Vec<String> = (0..1000).map(|row| format!("{row},\"{}\"{end}", row * row)).collect();
        let path = folder.write("a.csv", format!("x,y{end}{}", lines.concat()));
        let column = Column::csv(path, &CsvOptions::new().dtype(DType::I64)).unwrap();
        let expected: Vec<i64> = (0..1000).flat_map(|row| [row, row * row]).collect();
        assert_eq!(rows(&column).unwrap(), Tensor::new([1000, 2], &expected).unwrap());
        check_rows_at_random(&column);
    }
}

#[test]
fn invalid_csv_is_refused() {
    let folder = Folder::new("csv-wrong");
    let open = |text: &str, options: CsvOptions| Column::csv(folder.write("a.csv", text), &options);
    let new = CsvOptions::new;
    check_refused(open("", new()), &["a header", "an empty file"]);
    check_refused(open("\n\n", new().header(false)), &["a row", "an empty file"]);
    assert_eq!(check_refused(open("a,b\n1,2\n3\n", new()), &["2 fields at line 3"]).1, "1");
    assert_eq!(check_refused(open("a,b\r\n1,2\r\n\r\n3,4,5\r\n", new()), &["2 fields at line 4"]).1, "3");
    check_refused(open("a,b\n", new().column("c")), &["a column \"c\"", "[\"a\", \"b\"]"]);
    check_refused(open("a,a\n", new().column("a")), &["one column \"a\"", "more than one"]);
    check_refused(open("a,b\n", new().columns([0, 2])), &["a column 2", "2 columns"]);
    check_refused(open("1,2\n", new().header(false).column("a")), &["a column \"a\"", "no header"]);
    let none = open("a\n1\n", new().columns([""; 0])).unwrap_err();
    assert_eq!((refusal(&none), found(&none)), (("CsvOptions::columns", "columns", None), "none"));

    for end in ["\n", "\r\n"] {
        let mut lines: Vec<String> = (0..300).map(|row| format!("{row},7{end}")).collect();
        lines[200] = format!("{end}200,seven{end}");
        let column = open(&format!("a,b{end}{}", lines.concat()), new()).unwrap();
        let (_, found) = check_refused(rows(&column), &["f32 at line 203, column 1 (\"b\") counted from 0"]);
        assert_eq!(found, "\"seven\"");
    }
    let long = open(&format!("1\n{}\n", "x".repeat(100)), new().header(false).dtype(DType::I8)).unwrap();
    let (_, found) = check_refused(rows(&long), &["i8 at line 2, column 0"]);
    assert_eq!(found, format!("{:?}…", "x".repeat(40)));
    let large = open("1\n128\n", new().header(false).dtype(DType::I8)).unwrap();
    assert_eq!(check_refused(rows(&large), &[]).1, "\"128\"");
}

#[cfg(feature = "checkpoint")]
mod safetensors {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
    }

    #[test]
    fn a_tensor_by_its_name() {
        let folder = Folder::new("safetensors");
        let header = r#"{"__metadata__":{"made":"here"},
            "x":{"dtype":"I16","shape":[2,2],"data_offsets":[0,8]},
            "y":{"dtype":"BOOL","shape":[3],"data_offsets":[8,11]},
            "z":{"dtype":"F32","shape":[],"data_offsets":[11,15]}}"#;
        let path = folder.write("a", file(header, &[1, 0, 2, 0, 3, 0, 255, 255, 0, 1, 2, 0, 0, 0, 0]));
        let read = |name| rows(&Column::safetensors(&path, name)?);
        assert_eq!(read("x").unwrap(), Tensor::from([[1i16, 2], [3, -1]]));
        assert_eq!(read("y").unwrap(), Tensor::from([false, true, true]));
        check_refused(Column::safetensors(&path, "z"), &["at least one dimension", "a scalar"]);
        check_refused(Column::safetensors(&path, "w"), &["a tensor \"w\"", r#"["x", "y", "z"]"#]);
    }

    #[test]
    fn invalid_safetensors_are_refused() {
        let folder = Folder::new("safetensors-wrong");
        let one = |dtype: &str, shape: &str, end: usize| {
            format!(r#"{{"x":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{end}]}}}}"#)
        };
        let huge = "[4294967296,4294967296,4]";
        let cases: [(Vec<u8>, &[&str]); 11] = [
            (vec![], &["the length of the header", "0 bytes"]),
            (vec![255; 8], &["safetensors, whose header has at most 100000000 bytes", "18446744073709551615"]),
            (vec![9, 0, 0, 0, 0, 0, 0, 0, b'{'], &["the header in bytes 8..17", "9 bytes"]),
            (file("{", &[]), &["a header of safetensors", "EOF"]),
            (file("[]", &[]), &["a header of safetensors"]),
            (file("{}", &[]), &["a tensor \"x\"", "no tensors"]),
            (file(&one("F32", "[1]", 4), &[0; 3]), &["4 bytes after byte", "3 bytes"]),
            (file(&one("F32", "[1]", 4), &[0; 5]), &["4 bytes after byte", "5 bytes"]),
            (file(&one("F32", "[1]", 3), &[0; 3]), &["a header of safetensors"]),
            (file(&one("C64", "[1]", 8), &[0; 8]), &["one of bool", "C64"]),
            (file(&one("F32", huge, 16), &[0; 16]), &["a header of safetensors", "overflow"]),
        ];
        for (bytes, words) in cases {
            check_refused(Column::safetensors(folder.write("a", bytes), "x"), words);
        }
        // The end of the last tensor is the largest `usize`.
        let part = (1u64 << 61) - 1;
        let tensors: Vec<String> = (0..8)
            .map(|index| {
                let (start, end) = (index * part, (index + 1) * part);
                format!(r#""{index}":{{"dtype":"U8","shape":[{part}],"data_offsets":[{start},{end}]}}"#)
            })
            .collect();
        let bytes = file(&format!("{{{}}}", tensors.join(",")), &[]);
        check_refused(Column::safetensors(folder.write("a", bytes), "0"), &["18446744073709551608 bytes", "0 bytes"]);
    }
}
