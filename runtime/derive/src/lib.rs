//! `#[derive(Nest)]` for structs whose fields are nests.

#![forbid(unsafe_code)]

use proc_macro::TokenStream;
use quote::{quote, quote_spanned};
use syn::{Data, DeriveInput, Index, Member, ext::IdentExt, parse_macro_input, parse_quote, spanned::Spanned};

/// Implements `consonance::Nest` for a struct. Its leaves are the leaves of its fields, in order,
/// with the fields' names in their paths.
#[proc_macro_derive(Nest)]
pub fn derive_nest(input: TokenStream) -> TokenStream {
    let mut input = parse_macro_input!(input as DeriveInput);
    let Data::Struct(data) = &input.data else {
        return quote_spanned! { input.ident.span() => compile_error!("Nest is derived for structs"); }.into();
    };
    let members: Vec<Member> = (data.fields.iter().enumerate())
        .map(|(index, field)| match &field.ident {
            Some(name) => Member::Named(name.clone()),
            None => Member::Unnamed(Index { index: index as u32, span: field.span() }),
        })
        .collect();
    let keys = || {
        members.iter().map(|member| match member {
            Member::Named(name) => name.unraw().to_string(),
            Member::Unnamed(index) => index.index.to_string(),
        })
    };
    // The span of the field's type, so that the compiler reports a field that is no nest at that
    // field. Names are still resolved at the derive.
    let spans: Vec<_> =
        data.fields.iter().map(|field| field.ty.span().resolved_at(proc_macro::Span::call_site().into())).collect();
    let takes = (members.iter().zip(keys()).zip(&spans)).map(|((member, key), &span)| {
        quote_spanned! { span => ::consonance::Nest::take_leaves(&mut self.#member, &at.join(#key), leaves); }
    });
    let puts = members.iter().zip(&spans).map(|(member, &span)| {
        quote_spanned! { span => ::consonance::Nest::put_leaves(&mut self.#member, leaves)?; }
    });
    let writes = (members.iter().zip(keys()).zip(&spans)).map(|((member, key), &span)| {
        quote_spanned! { span => ::consonance::Nest::write(&mut self.#member, &at.join(#key), to)?; }
    });
    let reads = members.iter().zip(&spans).map(|(member, &span)| {
        quote_spanned! { span => #member: ::consonance::Nest::read(from)?, }
    });
    for parameter in input.generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(::consonance::Nest));
    }
    let name = &input.ident;
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    quote! {
        impl #generics ::consonance::Nest for #name #arguments #bounds {
            fn take_leaves(
                &mut self,
                at: &::consonance::nest::Path,
                leaves: &mut ::std::vec::Vec<::consonance::nest::Leaf>,
            ) {
                #(#takes)*
            }

            fn put_leaves(
                &mut self,
                leaves: &mut dyn ::core::iter::Iterator<Item = ::consonance::nest::Leaf>,
            ) -> ::consonance::Result<()> {
                #(#puts)*
                ::core::result::Result::Ok(())
            }

            fn write(
                &mut self,
                at: &::consonance::nest::Path,
                to: &mut ::consonance::nest::NestWriter,
            ) -> ::consonance::Result<()> {
                #(#writes)*
                ::core::result::Result::Ok(())
            }

            fn read(from: &mut ::consonance::nest::NestReader<'_>) -> ::consonance::Result<Self> {
                ::core::result::Result::Ok(#name { #(#reads)* })
            }
        }
    }
    .into()
}
