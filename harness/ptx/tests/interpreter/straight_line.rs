//! Random programs without branches, against plain Rust.

use crate::bench::results;
use quickcheck::{Arbitrary, Gen, QuickCheck};

/// An instruction on registers of 32 bits: the operation, the result, the operands.
#[derive(Clone, Debug)]
struct Instruction(usize, usize, [usize; 3]);

/// A program, and the values that its registers begin with, for each lane.
#[derive(Clone, Debug)]
struct Program {
    instructions: Vec<Instruction>,
    rows: Vec<[u32; REGISTERS]>,
}

const REGISTERS: usize = 6;

type Meaning = fn([u32; 3]) -> u32;

fn float(value: f32) -> u32 {
    if value.is_nan() { 0x7fff_ffff } else { value.to_bits() }
}

fn f(bits: u32) -> f32 {
    f32::from_bits(bits)
}

/// Each operation as PTX writes it (`D`, `A`, `B`, `C` are registers) and in Rust.
const OPERATIONS: [(&str, Meaning); 30] = [
    ("add.s32 D, A, B;", |[a, b, _]| a.wrapping_add(b)),
    ("sub.s32 D, A, B;", |[a, b, _]| a.wrapping_sub(b)),
    ("mul.lo.s32 D, A, B;", |[a, b, _]| a.wrapping_mul(b)),
    ("mul.hi.u32 D, A, B;", |[a, b, _]| ((u64::from(a) * u64::from(b)) >> 32) as u32),
    ("mad.lo.u32 D, A, B, C;", |[a, b, c]| a.wrapping_mul(b).wrapping_add(c)),
    ("and.b32 D, A, B;", |[a, b, _]| a & b),
    ("or.b32 D, A, B;", |[a, b, _]| a | b),
    ("xor.b32 D, A, B;", |[a, b, _]| a ^ b),
    ("not.b32 D, A;", |[a, ..]| !a),
    ("shl.b32 D, A, B;", |[a, b, _]| a.checked_shl(b).unwrap_or(0)),
    ("shr.u32 D, A, B;", |[a, b, _]| a.checked_shr(b).unwrap_or(0)),
    ("shr.s32 D, A, B;", |[a, b, _]| (a as i32 >> b.min(31)) as u32),
    ("min.s32 D, A, B;", |[a, b, _]| (a as i32).min(b as i32) as u32),
    ("max.u32 D, A, B;", |[a, b, _]| a.max(b)),
    ("abs.s32 D, A;", |[a, ..]| (a as i32).wrapping_abs() as u32),
    ("popc.b32 D, A;", |[a, ..]| a.count_ones()),
    ("clz.b32 D, A;", |[a, ..]| a.leading_zeros()),
    ("brev.b32 D, A;", |[a, ..]| a.reverse_bits()),
    ("div.u32 D, A, B;", |[a, b, _]| a.checked_div(b).unwrap_or(u32::MAX)),
    ("lop3.b32 D, A, B, C, 0xe8;", |[a, b, c]| a & b | b & c | a & c),
    ("shf.l.wrap.b32 D, A, B, C;", |[a, b, c]| (((u64::from(b) << 32 | u64::from(a)) << (c & 31)) >> 32) as u32),
    ("setp.lt.s32 %p1, A, B; selp.b32 D, A, C, %p1;", |[a, b, c]| if (a as i32) < b as i32 { a } else { c }),
    ("setp.geu.f32 %p1, A, B; selp.b32 D, C, A, %p1;", |[a, b, c]| if f(a) < f(b) { a } else { c }),
    ("add.rn.f32 D, A, B;", |[a, b, _]| float(f(a) + f(b))),
    ("mul.rn.f32 D, A, B;", |[a, b, _]| float(f(a) * f(b))),
    ("fma.rn.f32 D, A, B, C;", |[a, b, c]| float(f(a).mul_add(f(b), f(c)))),
    ("div.rn.f32 D, A, B;", |[a, b, _]| float(f(a) / f(b))),
    ("cvt.rn.f32.s32 D, A;", |[a, ..]| (a as i32 as f32).to_bits()),
    ("cvt.rzi.s32.f32 D, A;", |[a, ..]| (f(a) as i32) as u32),
    ("cvt.f64.f32 %d5, A; cvt.f64.f32 %d6, B; mul.rn.f64 %d5, %d5, %d6; cvt.rn.f32.f64 D, %d5;", |[a, b, _]| {
        float((f64::from(f(a)) * f64::from(f(b))) as f32)
    }),
];

impl Arbitrary for Instruction {
    fn arbitrary(g: &mut Gen) -> Instruction {
        let mut below = |bound| usize::arbitrary(g) % bound;
        let (operation, to) = (below(OPERATIONS.len()), below(REGISTERS));
        Instruction(operation, to, [(); 3].map(|()| below(REGISTERS)))
    }
}

impl Arbitrary for Program {
    fn arbitrary(g: &mut Gen) -> Program {
        let value = |g: &mut Gen| match u8::arbitrary(g) % 4 {
            0 => u32::arbitrary(g),
            1 => (f32::from(i16::arbitrary(g)) * 0.125).to_bits(),
            2 => u32::from(u8::arbitrary(g)),
            _ => *g.choose(&[0, 0x8000_0000, 0x7f80_0000, 0x7fc0_0000, 1, 0x7f7f_ffff, 0xffff_ffff]).expect("a choice"),
        };
        let lanes = usize::arbitrary(g) % 40 + 1;
        let rows = (0..lanes).map(|_| [(); REGISTERS].map(|()| value(g))).collect();
        Program { instructions: Vec::arbitrary(g), rows }
    }

    fn shrink(&self) -> Box<dyn Iterator<Item = Program>> {
        let rows = self.rows[..1].to_vec();
        let one = (self.rows.len() > 1).then(|| Program { rows, ..self.clone() });
        let program = self.clone();
        let shorter = self.instructions.shrink();
        Box::new(one.into_iter().chain(shorter.map(move |instructions| Program { instructions, ..program.clone() })))
    }
}

impl Program {
    fn code(&self) -> String {
        let mut code = String::new();
        for Instruction(operation, to, [a, b, c]) in &self.instructions {
            for letter in OPERATIONS[*operation].0.split_inclusive(['A', 'B', 'C', 'D']) {
                let (text, register) = match letter.chars().last() {
                    Some('A') => (&letter[..letter.len() - 1], Some(a)),
                    Some('B') => (&letter[..letter.len() - 1], Some(b)),
                    Some('C') => (&letter[..letter.len() - 1], Some(c)),
                    Some('D') => (&letter[..letter.len() - 1], Some(to)),
                    _ => (letter, None),
                };
                code += text;
                code += &register.map_or(String::new(), |register| format!("%x{register}"));
            }
            code += "\n";
        }
        // The result depends on every register.
        code + "mov.u32 %result, %x0;\n"
            + &(1..REGISTERS).map(|at| format!("mad.lo.u32 %result, %result, 31, %x{at};\n")).collect::<String>()
    }

    fn expected(&self, mut registers: [u32; REGISTERS]) -> u64 {
        for Instruction(operation, to, operands) in &self.instructions {
            registers[*to] = OPERATIONS[*operation].1(operands.map(|operand| registers[operand]));
        }
        let digest = registers[1..].iter().fold(registers[0], |sum, x| sum.wrapping_mul(31).wrapping_add(*x));
        digest.into()
    }
}

#[test]
fn random_programs_have_the_results_of_rust() {
    fn holds(program: Program) -> bool {
        let rows: Vec<Vec<u64>> = program.rows.iter().map(|row| row.map(u64::from).to_vec()).collect();
        let expected: Vec<u64> = program.rows.iter().map(|row| program.expected(*row)).collect();
        results(&program.code(), &[32; REGISTERS + 1], &rows) == expected
    }
    QuickCheck::new().tests(500).quickcheck(holds as fn(Program) -> bool);
}
